"""Makes the environments of a run's jobs while other jobs run."""

import signal
import threading
from collections.abc import Callable, Iterable
from typing import Final

from allranks.interruption import RunInterrupted, block_signals, check, checked_by

THREAD: Final = "environments"


class EnvironmentMaker:
    """A thread that makes environments one by one, and can be cancelled."""

    def __init__(self) -> None:
        self._is_cancelled = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, tasks: Iterable[Callable[[], None]], fail: Callable[[BaseException], None]) -> None:
        """Start to make environments, in this order; `fail` is called with an exception that ends the thread."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])

        def make_all() -> None:
            # Child processes inherit the mask and must receive signals. Python handles this process's own signals in
            # the main thread anyway.
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            try:
                with checked_by(self._check):
                    for make in tasks:
                        check()
                        make()
            except RunInterrupted:
                return
            except BaseException as error:  # noqa: BLE001 - the main thread raises it
                fail(error)

        with block_signals():
            thread = threading.Thread(target=make_all, name=THREAD, daemon=True)
            thread.start()
            self._thread = thread

    def _check(self) -> None:
        if self._is_cancelled.is_set():
            raise RunInterrupted

    def cancel(self) -> None:
        """End the thread at its next check, which leaves no incomplete environment."""
        self._is_cancelled.set()

    def join(self) -> None:
        """Wait for the thread's end."""
        if self._thread is not None:
            self._thread.join()

"""Makes the environments of a run's jobs while other jobs run."""

import signal
import threading
from collections.abc import Callable, Iterable
from typing import Final

from allranks.interruption import RunInterrupted, block_signals, check, checked_by

THREAD: Final = "environments"


class EnvironmentMaker:
    """A thread that makes one environment after the other, and that can be told to end at once."""

    def __init__(self) -> None:
        self._is_cancelled = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, makes: Iterable[Callable[[], None]], fail: Callable[[BaseException], None]) -> None:
        """Start to make environments, in this order; `fail` takes an exception that ends the thread."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])

        def make_all() -> None:
            # What it starts inherits its mask, and has to be open to signals. Its own are the main thread's anyway.
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            try:
                with checked_by(self._check):
                    for make in makes:
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
        """End the thread at its next check; it leaves nothing half made."""
        self._is_cancelled.set()

    def join(self) -> None:
        """Wait for the thread's end."""
        if self._thread is not None:
            self._thread.join()

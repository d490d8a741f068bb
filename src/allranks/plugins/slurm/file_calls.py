"""Calls on a shared file system that may hang: a thread makes them, and the caller waits with a time limit.

The kernel does not interrupt a call on NFS whose server is down. A thread that hangs in one is abandoned.
"""

import errno
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class FileCalls:
    """A thread that makes calls in order."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        threading.Thread(target=_make, args=(self._calls,), name="files", daemon=True).start()

    def submit(self, call: Callable[[], T]) -> "Future[T]":
        """Queue a call, and return its future result."""
        answer: Future[T] = Future()
        self._calls.put((answer, call))
        return answer

    def call(self, call: Callable[[], T], seconds: float) -> T:
        """Make a call, and return its result.

        Raises:
            OSError: The call failed, or took longer than `seconds`.
        """
        answer = self.submit(call)
        if not wait([answer], seconds).done:
            raise OSError(errno.ETIMEDOUT, f"the file system has not answered for {seconds:g} s")
        return answer.result()

    def close(self) -> None:
        """End the thread once its calls have been made."""
        self._calls.put(None)


def _make(calls: "SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]") -> None:
    while (found := calls.get()) is not None:
        answer, call = found
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            answer.set_exception(error)


def call_in_thread(call: Callable[[], T], seconds: float) -> T:
    """Make one call in its own thread, as :meth:`FileCalls.call` does."""
    calls = FileCalls()
    try:
        return calls.call(call, seconds)
    finally:
        calls.close()

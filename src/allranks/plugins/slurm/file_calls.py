"""Calls on a shared file system that may hang: a thread makes them, and the caller waits so long.

The kernel does not interrupt a call on NFS whose server is away. A thread that hangs in one is left behind.
"""

import errno
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class FileCalls:
    """A thread that makes calls in their order."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        threading.Thread(target=_make, args=(self._calls,), name="files", daemon=True).start()

    def begin(self, call: Callable[[], T]) -> "Future[T]":
        """Have a call made after those that were begun before it."""
        answer: Future[T] = Future()
        self._calls.put((answer, call))
        return answer

    def ask(self, call: Callable[[], T], seconds: float) -> T:
        """The answer of a call.

        Raises:
            OSError: There is none in this time.
        """
        answer = self.begin(call)
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


def answered(call: Callable[[], T], seconds: float) -> T:
    """The answer of one call, made by a thread of its own; see :meth:`FileCalls.ask`."""
    calls = FileCalls()
    try:
        return calls.ask(call, seconds)
    finally:
        calls.close()

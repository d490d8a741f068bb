"""Holds back the signals that end a job, so that they interrupt a wait and never something half done."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ENDING = frozenset({signal.SIGTERM, signal.SIGALRM})
"""What ends a job from outside: the order to stop, and the timer of the job's limit."""


def put_off(number: int) -> bool:
    """For a handler: whether this thread holds the signal back; then it is pending again, for when it no longer does.

    Signals are sent to a process: while the main thread holds one back, any other thread may take it, a library's own
    included, and Python runs the handler in the main thread all the same.
    """
    is_held_back = number in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    if is_held_back:
        signal.raise_signal(number)  # to this thread
    return is_held_back


def raising(make_error: Callable[[], Exception]) -> Callable[[int, object], None]:
    """A handler that raises an error, in a thread that lets its signal through."""

    def handle(number: int, _frame: object) -> None:
        if not put_off(number):
            raise make_error()

    return handle


def let_in() -> None:
    """Undo what whoever started this process has held back: a thread of its own hands that on."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())


@contextmanager
def held_back() -> Iterator[None]:
    """Keep ending signals pending in this block; a fork that is made in it inherits that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def let_through() -> Iterator[None]:
    """Deliver ending signals in this block, those that are pending first."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        # Here the handler of a pending signal may raise at once.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

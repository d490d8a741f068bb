"""Handles SIGINT, SIGTERM and SIGHUP: the first one ends the run with an orderly clean-up, later ones are ignored.

A signal that is ignored when the program starts stays ignored: HUP under ``nohup``, Ctrl-C in a shell's background job.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Final

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


CHECK_INTERVAL: Final = 0.25
"""The maximum number of seconds between two calls of :func:`check` in a wait."""

_CHECK: ContextVar[Callable[[], None]] = ContextVar("check", default=lambda: None)


class RunInterrupted(KeyboardInterrupt):
    """One of the signals has arrived.

    A plain :class:`KeyboardInterrupt` that passes through ``exec``, as during the import of a module with dataclasses,
    makes CPython end the process with SIGINT, regardless of its exit code (``run_eval_code_obj`` in pythonrun.c).
    """


@contextmanager
def block_signals() -> Iterator[None]:
    """Block the signals in this thread until the context ends."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def interruptible(*, to_the_end: bool = False) -> Iterator[None]:
    """Raise :class:`RunInterrupted` for the first signal, and ignore the others during clean-up.

    If Python drops it, as in a finalizer or in the callback of a weak reference, the signal is sent again.

    Args:
        to_the_end: Ignore signals after this context, too: the process is about to end with its final exit code.
    """

    def interrupt(received: int, _frame: FrameType | None) -> None:
        if defer_signal(received):
            return
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise RunInterrupted

    def repeat(dropped: "sys.UnraisableHookArgs") -> None:
        if not isinstance(dropped.exc_value, RunInterrupted):
            hook(dropped)
            return
        for number in before:
            signal.signal(number, interrupt)
        threading.Thread(target=send_again, daemon=True).start()

    def send_again() -> None:
        while _is_in(repeat):  # an exception in this hook would be dropped, too
            time.sleep(0.005)
        os.kill(os.getpid(), next(iter(before)))

    hook, sys.unraisablehook = sys.unraisablehook, repeat
    handled = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in handled}
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if to_the_end else handler)


def _is_in(function: Callable[..., object]) -> bool:
    """Whether the main thread is in a call of a function."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - documented
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame is not None


def defer_signal(number: int) -> bool:
    """In a handler: if this thread blocks the signal, make it pending again and return True.

    While the main thread blocks a signal, another thread may receive it, but Python runs the handler in the main
    thread.
    """
    is_blocked = number in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    if is_blocked:
        signal.raise_signal(number)  # to this thread
    return is_blocked


@contextmanager
def ignore_signals() -> Iterator[None]:
    """Ignore the signals in this context: the result of the command is final, and only its clean-up remains."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def check() -> None:
    """Raise an exception if the work of this thread must end; see :func:`checked_by`."""
    _CHECK.get()()


@contextmanager
def checked_by(reason: Callable[[], None]) -> Iterator[None]:
    """Make :func:`check` call `reason` in this context; `reason` raises an exception if the work must end.

    Signals only interrupt the main thread; work in other threads ends at its next check.
    """
    outer = _CHECK.get()

    def check_both() -> None:
        outer()
        reason()

    token = _CHECK.set(check_both)
    try:
        yield
    finally:
        _CHECK.reset(token)


@contextmanager
def time_limit(seconds: float, late: Exception) -> Iterator[None]:
    """Make :func:`check` in this context raise `late` after a number of seconds."""
    deadline = time.monotonic() + seconds

    def check_time() -> None:
        if time.monotonic() > deadline:
            raise late

    with checked_by(check_time):
        yield

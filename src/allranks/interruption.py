"""Ctrl-C, TERM and HUP: the first one ends the run in good order, further ones change nothing.

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


PATIENCE: Final = 0.25
"""Seconds that a wait may take between two calls of :func:`check`."""

_CHECK: ContextVar[Callable[[], None]] = ContextVar("check", default=lambda: None)


class RunInterrupted(KeyboardInterrupt):
    """One of the signals has arrived.

    It is a subclass because a plain :class:`KeyboardInterrupt` that passes through ``exec``, as it does while a module
    with dataclasses is imported, makes CPython end the process by SIGINT, whatever exit code the process asks for
    afterwards (``run_eval_code_obj`` in pythonrun.c).
    """


@contextmanager
def block_signals() -> Iterator[None]:
    """Block the signals until the context ends, so that clean-up runs to completion."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def interruptible(*, to_the_end: bool = False) -> Iterator[None]:
    """Turn the first of the signals into :class:`RunInterrupted`, and ignore the rest during clean-up.

    Python drops an exception raised in a finalizer or a weak reference's callback: the signal is then sent again.

    Args:
        to_the_end: Nothing follows in this process: a signal that comes after it must not change the exit code.
    """

    def interrupt(told: int, _frame: FrameType | None) -> None:
        if defer_signal(told):
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
        while _is_in(repeat):  # what is raised there is dropped, too
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
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - public, but for its name
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame is not None


def defer_signal(number: int) -> bool:
    """For a handler: return True if this thread blocks the signal, which is then pending again until it is unblocked.

    Signals are sent to a process: while the main thread blocks one, any other thread may take it, even a library's,
    and Python still runs the handler in the main thread.
    """
    is_held_back = number in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    if is_held_back:
        signal.raise_signal(number)  # to this thread
    return is_held_back


@contextmanager
def ignore_signals() -> Iterator[None]:
    """Ignore the signals: how the command ends is settled, and only its last acts are left."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def check() -> None:
    """Raise the reason why the work of this thread has to end, if there is one: see :func:`checked_by`."""
    _CHECK.get()()


@contextmanager
def checked_by(reason: Callable[[], None]) -> Iterator[None]:
    """Have :func:`check` call a function as well, which raises why the work in this block has to end.

    Signals reach only the main thread; work in any other one ends at its next check.
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
    """Have :func:`check` raise `late` in this block once its time is over."""
    deadline = time.monotonic() + seconds

    def check_time() -> None:
        if time.monotonic() > deadline:
            raise late

    with checked_by(check_time):
        yield

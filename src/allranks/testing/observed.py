"""What tests can observe: printed output, the log of DDP, and profiler events."""

import ctypes
import io
import os
import sys
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import NamedTuple, Protocol, TextIO, TypeVar, cast

from torch.nn.parallel import DistributedDataParallel

_STDOUT = 1
_STDERR = 2


class CapturedStream:
    """One stream of a :func:`captured_output`: readable at any time, during and after.

    What it holds is in a file without a name, on disk, which goes when nobody has this object any more.
    """

    def __init__(self) -> None:
        with tempfile.TemporaryFile() as file:
            self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)

    def fileno(self) -> int:
        """The descriptor of the file."""
        return self._descriptor

    def getvalue(self) -> str:
        """Everything printed so far; bytes that are no UTF-8 are shown as replacement characters."""
        _flush()
        size = os.fstat(self._descriptor).st_size
        return b"".join(_read(self._descriptor, size)).decode("utf-8", errors="replace")


def _read(descriptor: int, size: int) -> Iterator[bytes]:
    """The first bytes of a file; its offset, which is where the next line is written, stays."""
    offset = 0
    while offset < size:
        piece = os.pread(descriptor, size - offset, offset)
        if not piece:
            return
        offset += len(piece)
        yield piece


class CapturedOutput(NamedTuple):
    """Both streams of a :func:`captured_output`."""

    out: CapturedStream
    err: CapturedStream


@contextmanager
def captured_output() -> Iterator[CapturedOutput]:
    """Catch standard output and standard error of the whole process.

    The file descriptors 1 and 2 are redirected, so lines of C++ libraries and of child processes are caught like those
    of ``print``, in their order, however many. Can be nested: the innermost catches. It concerns all threads, so ranks
    that are threads must not catch at the same time.

    Yields:
        The streams ``(out, err)``, each with ``getvalue()``.
    """
    captured = CapturedOutput(CapturedStream(), CapturedStream())
    with ExitStack() as stack:
        stack.enter_context(_redirected(_STDOUT, captured.out))
        stack.enter_context(_redirected(_STDERR, captured.err))
        # pytest puts its own objects in the place of both, and those do not write to descriptors 1 and 2.
        stack.enter_context(_replaced("stdout", _STDOUT))
        stack.enter_context(_replaced("stderr", _STDERR))
        yield captured


@contextmanager
def _redirected(target: int, stream: CapturedStream) -> Iterator[None]:
    _flush()
    saved = os.dup(target)
    os.dup2(stream.fileno(), target)
    try:
        yield
    finally:
        _flush()
        os.dup2(saved, target)
        os.close(saved)


@contextmanager
def _replaced(name: str, descriptor: int) -> Iterator[None]:
    before: TextIO = getattr(sys, name)
    raw = io.FileIO(descriptor, "w", closefd=False)
    # Straight to the file, as with `python -u`: so lines of Python, of C and of children keep their order.
    text = io.TextIOWrapper(raw, encoding="utf-8", errors="replace", write_through=True)
    setattr(sys, name, text)
    try:
        yield
    finally:
        # Not closed: a logging handler made in the meantime may hold it, and then writes to the descriptor as it is.
        setattr(sys, name, before)


def _flush() -> None:
    """Let everything printed so far reach its descriptor: Python's buffers, and those of C's standard library."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    ctypes.CDLL(None).fflush(None)


_BEFORE_CPP_STACK = "\nException raised from "


def verify_ddp_error_logged(model: DistributedDataParallel, expected: str) -> None:
    """Check that DDP's log has an error with some words in it.

    Args:
        model: The model whose backward or forward pass went wrong.
        expected: Words of the error, or the text of the exception itself: a C++ stack at its end is not compared.

    Raises:
        AssertionError: DDP has logged no error, or another one.
    """
    logged = _logging_data(model)
    lacking = [name for name in ("iteration", "has_error", "error") if name not in logged]
    if lacking:
        msg = f"DDP has logged no error: its log lacks {', '.join(lacking)}"
        raise AssertionError(msg)
    words = expected.split(_BEFORE_CPP_STACK, maxsplit=1)[0]
    if words not in str(logged["error"]):
        msg = f"DDP has logged another error.\nexpected: {words}\nlogged:   {logged['error']}"
        raise AssertionError(msg)


def _logging_data(model: DistributedDataParallel) -> Mapping[str, object]:
    # DDP has no public way to its log; this method has been there since torch 1.8.
    read = getattr(model, "_get_ddp_logging_data", None)
    if read is None:
        msg = "this torch's DistributedDataParallel keeps no log that can be read: _get_ddp_logging_data is gone"
        raise RuntimeError(msg)
    return cast("Mapping[str, object]", read())


class NamedEvent(Protocol):
    """What the profiler records of one function: ``torch.autograd.profiler_util.FunctionEvent`` and its kin."""

    @property
    def name(self) -> str:
        """The name that it was recorded under."""


E = TypeVar("E", bound=NamedEvent)

_SHOWN = 20


def get_function_event(function_events: Iterable[E], partial_event_name: str) -> E:
    """The first event whose name has some words in it.

    Args:
        function_events: The events of a profile, as ``profile.function_events`` has them.
        partial_event_name: Part of the name.

    Raises:
        LookupError: There is none; with the names that there are.
    """
    events = list(function_events)
    found = next((event for event in events if partial_event_name in event.name), None)
    if found is None:
        names = sorted({event.name for event in events})
        shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        msg = f"no profiled event has {partial_event_name!r} in its name; there are: {shown or 'none at all'}"
        raise LookupError(msg)
    return found

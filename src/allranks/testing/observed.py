"""Helpers that read output, DDP's log, and profiler events."""

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
    """One captured stream, which can be read at any time during and after the capture.

    The content is stored in an unnamed file on disk, which is deleted with this object.
    """

    def __init__(self) -> None:
        with tempfile.TemporaryFile() as file:
            self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)

    def fileno(self) -> int:
        """The file descriptor of the file."""
        return self._descriptor

    def getvalue(self) -> str:
        """Everything that was printed so far; invalid UTF-8 is replaced by replacement characters."""
        _flush()
        size = os.fstat(self._descriptor).st_size
        return b"".join(_read(self._descriptor, size)).decode("utf-8", errors="replace")


def _read(descriptor: int, size: int) -> Iterator[bytes]:
    """Read a file from its start without moving its offset, where the next line will be written."""
    offset = 0
    while offset < size:
        chunk = os.pread(descriptor, size - offset, offset)
        if not chunk:
            return
        offset += len(chunk)
        yield chunk


class CapturedOutput(NamedTuple):
    """The streams of :func:`captured_output`."""

    out: CapturedStream
    err: CapturedStream


@contextmanager
def captured_output() -> Iterator[CapturedOutput]:
    """Capture standard output and standard error of the whole process during a ``with`` block.

    The file descriptors 1 and 2 are redirected, so the output of C++ libraries and of child processes is captured too,
    in order with that of ``print``, and without a size limit. Captures can be nested; the innermost one receives the
    output. A capture affects all threads, so ranks that are threads must not capture at the same time.

    Yields:
        The pair ``(out, err)``; call ``getvalue()`` of each to get the captured text.
    """
    captured = CapturedOutput(CapturedStream(), CapturedStream())
    with ExitStack() as stack:
        stack.enter_context(_redirected(_STDOUT, captured.out))
        stack.enter_context(_redirected(_STDERR, captured.err))
        # pytest replaces both streams with its own objects, which do not write to file descriptors 1 and 2.
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
    # Unbuffered, as with `python -u`, so that the output of Python, C and child processes stays in order.
    text = io.TextIOWrapper(raw, encoding="utf-8", errors="replace", write_through=True)
    setattr(sys, name, text)
    try:
        yield
    finally:
        # Not closed, because a logging handler that was created in the block may still use it.
        setattr(sys, name, before)


def _flush() -> None:
    """Flush the buffers of Python and of the C library."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    ctypes.CDLL(None).fflush(None)


_BEFORE_CPP_STACK = "\nException raised from "


def verify_ddp_error_logged(model: DistributedDataParallel, expected: str) -> None:
    """Check that DDP has logged an error with the expected text.

    Args:
        model: The model whose forward or backward pass failed.
        expected: Part of the error message. You can pass the text of the caught exception: a C++ stack at its end is
            ignored.

    Raises:
        AssertionError: DDP has logged no error, or a different one.
        RuntimeError: This version of torch has no such log.
    """
    logged = _logging_data(model)
    missing = [name for name in ("iteration", "has_error", "error") if name not in logged]
    if missing:
        msg = f"DDP has logged no error: its log has no {' and no '.join(missing)}"
        raise AssertionError(msg)
    text = expected.split(_BEFORE_CPP_STACK, maxsplit=1)[0]
    if text not in str(logged["error"]):
        msg = f"DDP has logged a different error.\nexpected: {text}\nlogged:   {logged['error']}"
        raise AssertionError(msg)


def _logging_data(model: DistributedDataParallel) -> Mapping[str, object]:
    # DDP has no public access to its log. This method has existed since torch 1.8.
    read = getattr(model, "_get_ddp_logging_data", None)
    if read is None:
        msg = "the log of DistributedDataParallel cannot be read: this torch has no _get_ddp_logging_data"
        raise RuntimeError(msg)
    return cast("Mapping[str, object]", read())


class NamedEvent(Protocol):
    """A profiler event, such as ``torch.autograd.profiler_util.FunctionEvent``."""

    @property
    def name(self) -> str:
        """The name of the recorded function."""


E = TypeVar("E", bound=NamedEvent)

_SHOWN = 20


def get_function_event(function_events: Iterable[E], partial_event_name: str) -> E:
    """Find the first profiler event whose name contains a text.

    Args:
        function_events: The events of a profile, such as ``profile.function_events``.
        partial_event_name: Part of the event's name.

    Returns:
        The event.

    Raises:
        LookupError: There is no such event; the message lists the names of the events.
    """
    events = list(function_events)
    event = next((event for event in events if partial_event_name in event.name), None)
    if event is None:
        names = sorted({event.name for event in events})
        shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        msg = f"no profiler event has {partial_event_name!r} in its name; the names are: {shown or '(no events)'}"
        raise LookupError(msg)
    return event

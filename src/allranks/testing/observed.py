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
    """One stream of a :func:`captured_output`, readable at any time, during and after the capture.

    Its content is in an unnamed file on disk, which is deleted with this object.
    """

    def __init__(self) -> None:
        with tempfile.TemporaryFile() as file:
            self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)

    def fileno(self) -> int:
        """The descriptor of the file."""
        return self._descriptor

    def getvalue(self) -> str:
        """Everything printed so far; invalid UTF-8 becomes replacement characters."""
        _flush()
        size = os.fstat(self._descriptor).st_size
        return b"".join(_read(self._descriptor, size)).decode("utf-8", errors="replace")


def _read(descriptor: int, size: int) -> Iterator[bytes]:
    """The first bytes of a file; does not move its offset, where the next line is written."""
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
    """Capture standard output and standard error of the whole process.

    The file descriptors 1 and 2 are redirected, so lines of C++ libraries and of child processes are captured like
    those of ``print``, in order, however many. Captures can be nested: the innermost gets the output. A capture affects
    all threads, so ranks that are threads must not capture at the same time.

    Yields:
        The streams ``(out, err)``, each with ``getvalue()``.
    """
    captured = CapturedOutput(CapturedStream(), CapturedStream())
    with ExitStack() as stack:
        stack.enter_context(_redirected(_STDOUT, captured.out))
        stack.enter_context(_redirected(_STDERR, captured.err))
        # pytest replaces both streams by its own objects, which do not write to descriptors 1 and 2.
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
    # Unbuffered, as with `python -u`, so that lines of Python, of C and of child processes stay in order.
    text = io.TextIOWrapper(raw, encoding="utf-8", errors="replace", write_through=True)
    setattr(sys, name, text)
    try:
        yield
    finally:
        # Not closed: a logging handler created meanwhile may keep it, and then writes to the restored descriptor.
        setattr(sys, name, before)


def _flush() -> None:
    """Flush the buffers of Python and of C's standard library to their descriptors."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    ctypes.CDLL(None).fflush(None)


_BEFORE_CPP_STACK = "\nException raised from "


def verify_ddp_error_logged(model: DistributedDataParallel, expected: str) -> None:
    """Check that DDP has logged an error that contains a text.

    Args:
        model: The model whose backward or forward pass failed.
        expected: Part of the error, or the text of the exception itself: a C++ stack at its end is ignored.

    Raises:
        AssertionError: DDP has logged no error, or a different one.
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
    # DDP has no public access to its log; this method has existed since torch 1.8.
    read = getattr(model, "_get_ddp_logging_data", None)
    if read is None:
        msg = "this torch's DistributedDataParallel has no readable log: _get_ddp_logging_data is missing"
        raise RuntimeError(msg)
    return cast("Mapping[str, object]", read())


class NamedEvent(Protocol):
    """A profiler's record of one function: ``torch.autograd.profiler_util.FunctionEvent`` and similar."""

    @property
    def name(self) -> str:
        """The recorded name."""


E = TypeVar("E", bound=NamedEvent)

_SHOWN = 20


def get_function_event(function_events: Iterable[E], partial_event_name: str) -> E:
    """The first event whose name contains a text.

    Args:
        function_events: The events of a profile, such as ``profile.function_events``.
        partial_event_name: Part of the name.

    Raises:
        LookupError: There is no such event; the message lists the existing names.
    """
    events = list(function_events)
    found = next((event for event in events if partial_event_name in event.name), None)
    if found is None:
        names = sorted({event.name for event in events})
        shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        msg = f"no profiled event has {partial_event_name!r} in its name; there are: {shown or 'none at all'}"
        raise LookupError(msg)
    return found

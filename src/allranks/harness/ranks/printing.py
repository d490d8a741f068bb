"""How a rank prints: at once, into the agent's pipes, so that nothing is lost with its process."""

import contextlib
import ctypes
import io
import os
import sys
from typing import TextIO

_LINE_BUFFERED = 1  # _IOLBF of glibc and musl

_libc = ctypes.CDLL(None)


def print_at_once() -> tuple[TextIO, ...]:
    """Take the buffers away from this process's standard streams; C's own stdout keeps one for a line.

    Returns:
        The streams that it had, to be kept: their end would close the descriptors.
    """
    before = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    sys.stdout = sys.__stdout__ = _unbuffered(1)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _unbuffered(2)  # type: ignore[misc]
    with contextlib.suppress(ValueError):  # a C library that names its streams otherwise
        _libc.setvbuf(ctypes.c_void_p.in_dll(_libc, "stdout"), None, _LINE_BUFFERED, 0)
    return tuple(stream for stream in before if stream is not None)


def _unbuffered(descriptor: int) -> io.TextIOWrapper:
    # A file object of its own: closing it, as tests do, must not close the descriptor.
    raw = os.fdopen(descriptor, "wb", buffering=0, closefd=False)
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)


def flush_output() -> None:
    """Hand everything that C code has printed to the kernel."""
    _libc.fflush(None)

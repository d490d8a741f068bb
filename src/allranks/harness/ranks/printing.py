"""How a rank prints: unbuffered into pipes, with pytest's terminal for its plugins."""

import contextlib
import ctypes
import io
import os
import sys
from typing import Any, TextIO

import pytest
from _pytest.terminal import TerminalReporter

_LINE_BUFFERED = 1  # _IOLBF of glibc and musl

_libc = ctypes.CDLL(None)


def print_at_once() -> tuple[TextIO, ...]:
    """Unbuffer this process's standard streams; C's own stdout becomes line-buffered.

    Returns:
        The previous streams. The caller must keep them: their finalizers would close the descriptors.
    """
    before = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    sys.stdout = sys.__stdout__ = _unbuffered(1)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _unbuffered(2)  # type: ignore[misc]
    with contextlib.suppress(ValueError):  # the C library uses other names for its streams
        _libc.setvbuf(ctypes.c_void_p.in_dll(_libc, "stdout"), None, _LINE_BUFFERED, 0)
    return tuple(stream for stream in before if stream is not None)


def _unbuffered(descriptor: int) -> io.TextIOWrapper:
    # closefd=False: tests close their streams, which must not close the descriptor.
    raw = os.fdopen(descriptor, "wb", buffering=0, closefd=False)
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)


def flush_output() -> None:
    """Flush all output streams of C code."""
    _libc.fflush(None)


_NAME = "terminalreporter"


class SilentReporter:
    """Stands in for the terminal reporter, but has no hooks, so pytest never calls it.

    Args:
        reporter: The real one, which plugins such as pytest-timeout look up by name to write on.
    """

    def __init__(self, reporter: TerminalReporter) -> None:
        self._reporter = reporter

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the real one has
        """Read the attribute of the real reporter."""
        return getattr(self._reporter, name)


def silence_terminal(config: pytest.Config) -> None:
    """Disable progress reports; redirect what plugins write to the terminal to standard error."""
    reporter = config.pluginmanager.unregister(name=_NAME)
    if isinstance(reporter, TerminalReporter):
        reporter._tw._file = sys.stderr  # noqa: SLF001 - a terminal writer cannot be redirected otherwise
        config.pluginmanager.register(SilentReporter(reporter), _NAME)

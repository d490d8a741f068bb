"""Side effects of importing a suite: threads, pools, log handlers, and modules that ranks import late.

A fork lacks the threads of its parent. If importing a suite starts a Python thread, its ranks therefore run in new
processes. A native thread belongs to the pool of a library that handles forks itself (OpenMP, OpenBLAS, gRPC), so it
only causes a notice.
With ``OMP_NUM_THREADS=1`` and ``OPENBLAS_NUM_THREADS=1``, which the agent sets, torch 2.13, NumPy 2.4, Hypothesis,
pytest and its plugins start no thread during import.

The first ``torch.testing.assert_close`` in a process imports 500 modules, and the first optimizer another package. Each
takes about 1 s (torch 2.13). Seeding a rank imports ``numpy.random``, which takes 14 ms. Once a rank has imported such
modules, they are preloaded for the ranks of later gangs.
"""

import contextlib
import importlib
import itertools
import logging
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import util
from pathlib import Path
from typing import TextIO

_TASKS = Path("/proc/self/task")


@dataclass(frozen=True, kw_only=True)
class NewThreads:
    """The names of threads that were started since the last check."""

    python: tuple[str, ...]  # started by Python
    native: tuple[str, ...]  # all others; their names are those in the kernel


class ThreadWatch:
    """Reports the threads that were started since the last :meth:`take`."""

    def __init__(self) -> None:
        self._known: set[int] = set()
        self.take()

    def take(self) -> NewThreads:
        """The new threads, each of which is reported once."""
        python = {thread.native_id: thread.name for thread in threading.enumerate() if thread.native_id is not None}
        new = [number for number in _thread_ids() if number not in self._known]
        self._known.update(new)
        return NewThreads(
            python=tuple(python[number] for number in new if number in python),
            native=tuple(_thread_name(number) for number in new if number not in python),
        )


def _thread_ids() -> list[int]:
    return sorted(int(entry.name) for entry in _TASKS.iterdir())


def _thread_name(number: int) -> str:
    try:
        return (_TASKS / str(number) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "ended"


def end_pools() -> None:
    """Shut down the pools and managers of ``multiprocessing`` in this process, as at its exit."""
    # The only way to do so: these objects have registered finalizers for the exit (Python 3.11 to 3.14).
    finalize = getattr(util, "_run_finalizers", None)
    if finalize is not None:
        finalize(0)


def redirect_handlers(captured: Sequence[TextIO], real: Sequence[TextIO]) -> None:
    """Redirect log handlers from pytest's capture to the process's own streams.

    A handler keeps the stream with which it was created. If it was created during import, its stream is closed when the
    capture ends, and each log message would print a traceback.
    """
    for handler in _stream_handlers():
        for before, after in zip(captured, real, strict=True):
            if handler.stream is before and before is not after:
                handler.stream = after  # not setStream, which flushes the closed one


def _stream_handlers() -> Iterator[logging.StreamHandler[TextIO]]:
    named = [logger for logger in logging.Logger.manager.loggerDict.values() if isinstance(logger, logging.Logger)]
    for logger in (logging.getLogger(), *named):
        for handler in logger.handlers:
            if isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler):
                yield handler


_FORK_SAFE_PACKAGES = frozenset({"torch", "numpy", "sympy", "mpmath"})
"""Packages whose import starts no thread and uses no device, so that forking is still safe."""

_LONGEST_REPORT = 32_000
"""Maximum number of characters of module names in a report, which must fit into a pipe."""


class ImportWatch:
    """Reports the modules that a fork has imported since its start or since the last call.

    It does not touch older modules: even reading a name changes its reference count, which copies a memory page that
    the fork shares with its parent. For all names in a process with torch, this is several MB.
    """

    def __init__(self) -> None:
        self._mark()

    def _mark(self) -> None:
        self._count = len(sys.modules)
        self._last = next(reversed(sys.modules))

    def take(self) -> tuple[str, ...]:
        """The new modules that can be preloaded for later ranks, in the order of their import."""
        newest_first = itertools.takewhile(lambda name: name != self._last, reversed(sys.modules))
        # Limited, in case the last known module was removed.
        late = list(itertools.islice(newest_first, max(0, len(sys.modules) - self._count)))
        self._mark()
        names = [name for name in reversed(late) if name.partition(".")[0] in _FORK_SAFE_PACKAGES]
        sizes = itertools.accumulate(len(name) + 4 for name in names)  # with quotes, comma and space
        return tuple(name for name, size in zip(names, sizes, strict=True) if size <= _LONGEST_REPORT)


def preload(names: Iterable[str]) -> None:
    """Import the modules that are safe to fork. Ignores errors: a rank that needs the module gets the error again."""
    for name in names:
        if name not in sys.modules and name.partition(".")[0] in _FORK_SAFE_PACKAGES:
            with contextlib.suppress(Exception):
                importlib.import_module(name)

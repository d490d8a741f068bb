"""What importing a suite leaves behind: threads, log handlers, and modules for later.

A Python thread was started by the suite itself, and no rank would have it: an error. A native thread belongs to a
library's pool, and libraries with pools handle forks themselves (OpenMP, OpenBLAS, gRPC): a notice. torch 2.13, NumPy
2.4, Hypothesis, pytest and its plugins start no thread on import with ``OMP_NUM_THREADS=1`` and
``OPENBLAS_NUM_THREADS=1``, which the agent sets.

The first ``torch.testing.assert_close`` in a process imports 500 modules, and the first optimizer another package:
about a second each (torch 2.13), in every rank of every gang. Seeding a rank imports ``numpy.random``: 14 ms.
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
    """Threads that started since the last look."""

    python: tuple[str, ...]  # names of threads that Python started
    native: tuple[str, ...]  # names of all others, as the kernel reports them


class ThreadWatch:
    """Reports the threads that started since the last call."""

    def __init__(self) -> None:
        self._known: set[int] = set()
        self.news()

    def news(self) -> NewThreads:
        """The new live threads; each is reported once."""
        python = {thread.native_id: thread.name for thread in threading.enumerate() if thread.native_id is not None}
        new = [number for number in map(int, _names(_TASKS)) if number not in self._known]
        self._known.update(new)
        return NewThreads(
            python=tuple(python[number] for number in new if number in python),
            native=tuple(_name(number) for number in new if number not in python),
        )


def _names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def _name(number: int) -> str:
    try:
        return (_TASKS / str(number) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "ended"


def end_pools() -> None:
    """End the pools and managers of ``multiprocessing`` that this process has, as its exit would."""
    # The only function that does so; it runs what these objects have registered for the exit (Python 3.11 to 3.14).
    finalize = getattr(util, "_run_finalizers", None)
    if finalize is not None:
        finalize(0)


def redirect_handlers(captured: Sequence[TextIO], real: Sequence[TextIO]) -> None:
    """Redirect log handlers from pytest's capture to the process's own streams.

    A handler keeps the stream it was created with. If that was at import, the stream closes when the capture ends, and
    each logged line would print a traceback.
    """
    for handler in _stream_handlers():
        for before, after in zip(captured, real, strict=True):
            if handler.stream is before and before is not after:
                handler.stream = after  # not setStream, which flushes the closed one


def _stream_handlers() -> Iterator[logging.StreamHandler[TextIO]]:
    named = [each for each in logging.Logger.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    for logger in (logging.getLogger(), *named):
        for handler in logger.handlers:
            if isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler):
                yield handler


_PACKAGES = frozenset({"torch", "numpy", "sympy", "mpmath"})
"""Packages whose import starts no thread and touches no device, so forking stays safe afterwards."""

_ROOM = 32_000
"""Maximum characters of module names in a report, which must fit into a pipe."""


class ImportWatch:
    """Reports what a fork has imported since it began, or since the last call.

    It touches no older module: even reading a name writes to its reference count, which copies the page that the fork
    shares with its parent. For all names in a process with torch, that is several MB.
    """

    def __init__(self) -> None:
        self._mark()

    def _mark(self) -> None:
        self._count = len(sys.modules)
        self._last = next(reversed(sys.modules))

    def take(self) -> tuple[str, ...]:
        """The new modules that an agent may preload for later ranks, in import order."""
        newest_first = itertools.takewhile(lambda name: name != self._last, reversed(sys.modules))
        # If the last known module was removed, this bounds the walk.
        late = list(itertools.islice(newest_first, max(0, len(sys.modules) - self._count)))
        self._mark()
        names = [name for name in reversed(late) if name.partition(".")[0] in _PACKAGES]
        room = itertools.accumulate(len(name) + 4 for name in names)
        return tuple(name for name, used in zip(names, room, strict=True) if used <= _ROOM)


def preload(names: Iterable[str]) -> None:
    """Import modules of these packages; failures are left to the rank that needs the module."""
    for name in names:
        if name not in sys.modules and name.partition(".")[0] in _PACKAGES:
            with contextlib.suppress(Exception):
                importlib.import_module(name)

"""What importing a suite leaves behind: threads, log handlers, and modules for later.

A Python thread is something that the suite itself started, and that its tests would miss in each rank: an error. A
native one is a library's pool, and libraries with such pools see to forks themselves (OpenMP, OpenBLAS, gRPC): a
notice. Of torch 2.13, NumPy 2.4, Hypothesis, pytest and its plugins, none starts a thread when it is imported with
``OMP_NUM_THREADS=1`` and ``OPENBLAS_NUM_THREADS=1``, which the agent sets.

The first ``torch.testing.assert_close`` of a process imports 500 modules, the first optimizer another package: about a
second each (torch 2.13), which every rank of every gang would pay again. NumPy imports ``numpy.random`` when a rank is
seeded: 14 ms.
"""

import contextlib
import importlib
import itertools
import logging
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

_TASKS = Path("/proc/self/task")


@dataclass(frozen=True, kw_only=True)
class NewThreads:
    """Threads that were not there before.

    Attributes:
        python: Names of those that Python started.
        native: Names of the others, as the kernel has them.
    """

    python: tuple[str, ...]
    native: tuple[str, ...]


class ThreadWatch:
    """Tells what threads have come since it was last asked."""

    def __init__(self) -> None:
        self._known: set[int] = set()
        self.news()

    def news(self) -> NewThreads:
        """The threads that have come and live, each told once."""
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


def redirect_handlers(captured: Sequence[TextIO], real: Sequence[TextIO]) -> None:
    """Have the handlers that print to pytest's capture print to the process's own streams.

    A handler keeps the stream that it was made with. Made at import, it has one that is closed when the capture ends,
    and each line that it logs would be a traceback.

    Args:
        captured: The streams that were there during collection.
        real: What is to take the place of each.
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
"""Packages whose import starts no thread and touches no device: a fork after it is as clean as one before."""

_ROOM = 32_000
"""Characters for their names in a report, which has to fit into a pipe."""


class ImportWatch:
    """Tells what a fork has imported since it began, or since it was last asked.

    It touches no module that was there before: even to look at a name writes to its reference count, and the page that
    the fork shared with its parent is copied. For all names of a process with torch that is several MB.
    """

    def __init__(self) -> None:
        self._mark()

    def _mark(self) -> None:
        self._count = len(sys.modules)
        self._last = next(reversed(sys.modules))

    def take(self) -> tuple[str, ...]:
        """The new modules that an agent may import for the ranks to come, in the order of their import."""
        newest_first = itertools.takewhile(lambda name: name != self._last, reversed(sys.modules))
        # Where the last one is gone, this bounds the way back.
        late = list(itertools.islice(newest_first, max(0, len(sys.modules) - self._count)))
        self._mark()
        names = [name for name in reversed(late) if name.partition(".")[0] in _PACKAGES]
        room = itertools.accumulate(len(name) + 4 for name in names)
        return tuple(name for name, used in zip(names, room, strict=True) if used <= _ROOM)


def preload(names: Iterable[str]) -> None:
    """Import modules of those packages; one that cannot be imported here is left to the rank that needs it."""
    for name in names:
        if name not in sys.modules and name.partition(".")[0] in _PACKAGES:
            with contextlib.suppress(Exception):
                importlib.import_module(name)

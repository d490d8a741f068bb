"""Modules that ranks import while they run a test, and that the agent then imports once for all ranks to come.

The first ``torch.testing.assert_close`` of a process imports 500 modules, the first optimizer another package: about a
second each (torch 2.13), which every rank of every gang would pay again. NumPy imports ``numpy.random`` when a rank is
seeded: 14 ms.
"""

import contextlib
import importlib
import itertools
import sys
from collections.abc import Iterable

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

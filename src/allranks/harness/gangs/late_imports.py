"""Modules that ranks import while they run a test, and that the agent then imports once for all ranks to come.

The first ``torch.testing.assert_close`` of a process imports 500 modules, the first optimizer another package: about a
second each (torch 2.13), which every rank of every gang would pay again. NumPy imports ``numpy.random`` when a rank is
seeded: 14 ms.
"""

import contextlib
import importlib
import itertools
import sys
from collections.abc import Collection, Iterable

_PACKAGES = frozenset({"torch", "numpy", "sympy", "mpmath"})
"""Packages whose import starts no thread and touches no device: a fork after it is as clean as one before."""

_ROOM = 32_000
"""Characters for their names in a report, which has to fit into a pipe."""


def imported_late(before: Collection[str]) -> tuple[str, ...]:
    """The modules that an agent may import for the ranks to come, in the order of their import.

    Args:
        before: The modules that were there at the start.
    """
    names = [name for name in sys.modules if name not in before and name.partition(".")[0] in _PACKAGES]
    room = itertools.accumulate(len(name) + 4 for name in names)
    return tuple(name for name, used in zip(names, room, strict=True) if used <= _ROOM)


def preload(names: Iterable[str]) -> None:
    """Import modules; one that cannot be imported here is left to the rank that needs it."""
    for name in names:
        if name not in sys.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)

"""Counts the calls of a function in the process that imports a suite and in its forks."""

import functools
import mmap
import os
from dataclasses import dataclass, field
from types import ModuleType


@dataclass
class Calls:
    """Calls so far.

    Attributes:
        importer: The process that began to count.
        here: Calls in this process since it was forked.
    """

    importer: int = field(default_factory=os.getpid)
    here: int = 0
    _shared: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, 8))

    @property
    def in_importer(self) -> int:
        """Calls in the importer, up to this moment: its forks share the memory."""
        return int.from_bytes(self._shared[:8])

    def note(self) -> None:
        """Count one."""
        self.here += 1
        if os.getpid() == self.importer:
            self._shared[:8] = self.here.to_bytes(8)


def count_calls(module: ModuleType, name: str) -> Calls:
    """Begin to count the calls of ``module.name``; without such a function there is nothing to count."""
    calls = Calls()
    function = getattr(module, name)

    @functools.wraps(function)
    def counted(*args: object, **kwargs: object) -> object:
        calls.note()
        return function(*args, **kwargs)

    setattr(module, name, counted)
    return calls

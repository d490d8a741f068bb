"""Threads that importing a suite leaves behind: a fork copies none of them, but every lock that they hold.

A Python thread is something that the suite itself started, and that its tests would miss in each rank: an error. A
native one is a library's pool, and libraries with such pools see to forks themselves (OpenMP, OpenBLAS, gRPC): a
notice. Of torch 2.13, NumPy 2.4, Hypothesis, pytest and its plugins, none starts a thread when it is imported with
``OMP_NUM_THREADS=1`` and ``OPENBLAS_NUM_THREADS=1``, which the agent sets.
"""

import threading
from dataclasses import dataclass
from pathlib import Path

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

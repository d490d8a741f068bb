"""The order of importance in which tasks are over soonest, as far as their lengths are known.

Several plain orders are tried in the simulator, and the best is improved by exchanging tasks, as long as that pays:
the longest first is best where all tasks take alike, and bad where some take the whole host.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from allranks.schedule.packing.simulation import makespan, simulate
from allranks.schedule.packing.task import Room, Task, lower_bound

GOOD: Final = 1.01
"""How many times the lower bound is near enough."""

EFFORT: Final = 15_000
"""Tasks that are placed in search of a better order, over all tries: less than a second."""

TRIES: Final = 100
"""Tries for each task, where there are few."""


def ordered(tasks: Sequence[Task], total: Room, *, effort: int = EFFORT) -> list[Task]:
    """The tasks, the most important first. The same tasks in the same order come to the same.

    Args:
        tasks: In the order that counts where nothing else does.
        total: What the host has.
        effort: How many tasks may be placed in search of an order.
    """
    search = _Search(total, lower_bound(tasks, total) * GOOD, min(effort, TRIES * len(tasks) ** 2))
    for key in _keys(total):
        search.tries(sorted(tasks, key=key))
    for neighbour in _neighbours(search, len(tasks)):
        search.tries(neighbour)
    return search.best


class _Search:
    """The best order so far."""

    def __init__(self, total: Room, wanted: float, effort: int) -> None:
        self._total = total
        self._wanted = wanted
        self._effort = effort
        self.best: list[Task] = []
        self._seconds = float("inf")

    @property
    def is_over(self) -> bool:
        return self._seconds <= self._wanted or self._effort <= 0

    def tries(self, order: list[Task]) -> None:
        if self.best and self.is_over:
            return
        self._effort -= len(order)
        seconds = makespan(simulate(order, self._total))
        if seconds <= self._seconds:
            self.best, self._seconds = order, seconds


def _keys(total: Room) -> tuple[Callable[[Task], float], ...]:
    """The longest first; those first that take most of the host; and those that take most of it for longest."""

    def part(task: Task) -> float:
        return max((amount / most for amount, most in zip(task.room, total, strict=True) if most), default=0.0)

    return (
        lambda task: -task.seconds,
        lambda task: -task.seconds * part(task),
        lambda task: -part(task),
        lambda task: -task.seconds * (part(task) > 0.5),
    )


def _neighbours(search: _Search, count: int) -> Iterator[list[Task]]:
    """Orders in which one task of the best has another place; without end, unless the search is over."""
    chance = random.Random(count)  # noqa: S311 - no secret: the same search every time
    while count > 1 and not search.is_over:
        order = list(search.best)
        task = order.pop(chance.randrange(count))
        order.insert(chance.randrange(count), task)
        yield order

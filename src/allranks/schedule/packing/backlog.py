"""Waiting tasks: their order of importance, which begins next, and a simulation of both.

The first in line begins as soon as it fits. One further back may begin before it where that does not hold it up: when
it is expected to be over by then, or fits beside it. So nothing idles that somebody could use, and no task, however
large, waits for more than those before it. (Known as EASY backfilling: Lifka 1995, the ANL/IBM SP scheduling system.)

Several plain orders are tried in the simulator, and the best is improved by exchanging tasks, as long as that pays:
the longest first is best where all tasks take alike, and bad where some take the whole host.
"""

import heapq
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from allranks.schedule.packing.estimate import Capacity, Running, Task, lower_bound

_OVERTIME = 0.25
"""The part of its time so far that a task which is late is expected to take yet."""


class Backlog:
    """Tasks in the order of their importance.

    Args:
        tasks: The most important first.
        total: All that there is; a task that takes more runs alone.
    """

    def __init__(self, tasks: Iterable[Task], total: Capacity) -> None:
        self._tasks = list(tasks)
        self._total = total
        self._taken_from = 0

    def __len__(self) -> int:
        """How many wait."""
        return len(self._tasks)

    def add(self, task: Task) -> None:
        """Put a task at the end of the line."""
        self._tasks.append(task)

    def clear(self) -> list[Task]:
        """Take out all tasks, in their order."""
        tasks, self._tasks = self._tasks, []
        return tasks

    def put_back(self, task: Task) -> None:
        """Put the task that was taken last back to its place."""
        self._tasks.insert(self._taken_from, task)

    def take_first(self) -> Task:
        """Take out the first task, whether or not it fits.

        Raises:
            IndexError: There is none.
        """
        return self._pop(0)

    @property
    def first(self) -> Task | None:
        """The task that everything else must not hold up."""
        return self._tasks[0] if self._tasks else None

    def _pop(self, place: int) -> Task:
        self._taken_from = place
        return self._tasks.pop(place)

    def take(
        self, now: float, free: Capacity, running: Collection[Running], before: Capacity | None = None
    ) -> Task | None:
        """Take out the task that is to begin now; None where the next one has to wait.

        Args:
            now: Seconds, on the clock of `running`.
            free: What nobody uses. Less than the rest of all, where others use the host too.
            running: What has begun and not ended.
            before: What a task waits for that is before all of these, and has been taken out already.
        """
        if not self._tasks:
            return None
        if before is None and free.holds(self._room(self._tasks[0])):
            return self._pop(0)
        if before is None:
            place = self._behind(self._room(self._tasks[0]), 1, now, free, running)
        else:
            place = self._behind(before, 0, now, free, running)
        return None if place is None else self._pop(place)

    def _room(self, task: Task) -> Capacity:
        return task.room.within(self._total)

    def _behind(
        self, wanted: Capacity, place_from: int, now: float, free: Capacity, running: Collection[Running]
    ) -> int | None:
        """The place of a task that does not hold up the one that wants so much."""
        if not any(free):
            return None
        turn, beside = self._turn_of(wanted, now, free, running)
        for place, task in enumerate(self._tasks[place_from:], place_from):
            room = self._room(task)
            if free.holds(room) and (now + task.seconds <= turn or beside.holds(room)):
                return place
        return None

    def _turn_of(
        self, wanted: Capacity, now: float, free: Capacity, running: Collection[Running]
    ) -> tuple[float, Capacity]:
        """When so much is expected to be free, and what is free beside it then."""
        for ends, each in sorted(((_end(each, now), each) for each in running), key=lambda pair: pair[0]):
            free = free.plus(self._room(each.task))
            if free.holds(wanted):
                return ends, free.minus(wanted)
        # Others hold what it needs, and nobody knows for how long: whatever takes of that may hold it up.
        return now, Capacity(*(max(have - want, 0) for have, want in zip(free, wanted, strict=True)))


def _end(each: Running, now: float) -> float:
    expected = each.began + each.task.seconds
    return expected if now < expected else now + _OVERTIME * (now - each.began)


class Stay(NamedTuple):
    """From when to when a task ran, in seconds from the beginning."""

    task: Task
    began: float
    ended: float


def _as_expected(task: Task) -> float:
    return task.seconds


def simulate(tasks: Iterable[Task], total: Capacity, seconds: Callable[[Task], float] = _as_expected) -> list[Stay]:
    """Run tasks in this order of importance.

    Args:
        tasks: The most important first.
        total: What the host has.
        seconds: How long a task really takes; default: as long as is expected.

    Returns:
        When each ran, in the order in which they began.
    """
    backlog, stays = Backlog(tasks, total), list[Stay]()
    running: dict[int, Running] = {}
    ends: list[tuple[float, int]] = []
    now, free = 0.0, total
    while backlog or ends:
        while task := backlog.take(now, free, running.values()):
            free = free.minus(task.room.within(total))
            stays.append(Stay(task, now, now + seconds(task)))
            running[len(stays)] = Running(task, now)
            heapq.heappush(ends, (stays[-1].ended, len(stays)))
        now = ends[0][0]
        while ends and ends[0][0] == now:
            free = free.plus(running.pop(heapq.heappop(ends)[1]).task.room.within(total))
    return stays


def makespan(stays: Iterable[Stay]) -> float:
    """Seconds from the beginning to the last end."""
    return max((stay.ended for stay in stays), default=0.0)


GOOD: Final = 1.01
"""How many times the lower bound is near enough."""

EFFORT: Final = 15_000
"""Tasks that are placed in search of a better order, over all tries: less than a second."""

TRIES: Final = 100
"""Tries for each task, where there are few."""


def ordered(tasks: Sequence[Task], total: Capacity, *, effort: int = EFFORT) -> list[Task]:
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

    def __init__(self, total: Capacity, wanted: float, effort: int) -> None:
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


def _keys(total: Capacity) -> tuple[Callable[[Task], float], ...]:
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

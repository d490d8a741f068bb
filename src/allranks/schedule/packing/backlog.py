"""Waiting tasks: their order of importance, which begins next, and a simulation of both.

The first task begins as soon as it fits. A later one may begin before it if that does not delay it: if it is expected
to end by then, or fits beside it. So resources do not idle while a task could use them, and no task, however large,
waits for more than those before it. (Known as EASY backfilling: Lifka 1995, the ANL/IBM SP scheduling system.)

The simulator tries several simple orders, and improves the best by moving tasks, as long as that pays: longest first is
best if all tasks take the same, and bad if some take the whole host.
"""

import heapq
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from allranks.schedule.packing.estimate import Capacity, Running, Task, lower_bound

_OVERTIME = 0.25
"""A late task is expected to take this part of its time so far in addition."""


class Backlog:
    """Tasks in the order of their importance; one that needs more than the total runs alone."""

    def __init__(self, tasks: Iterable[Task], total: Capacity) -> None:
        self._tasks = list(tasks)
        self._total = total
        self._taken_from = 0

    def __len__(self) -> int:
        """How many wait."""
        return len(self._tasks)

    def add(self, task: Task) -> None:
        """Append a task."""
        self._tasks.append(task)

    def clear(self) -> list[Task]:
        """Take out all tasks, in their order."""
        tasks, self._tasks = self._tasks, []
        return tasks

    def put_back(self, task: Task) -> None:
        """Put the task that was taken last back in its place."""
        self._tasks.insert(self._taken_from, task)

    def take_first(self) -> Task:
        """Take out the first task, whether or not it fits.

        Raises:
            IndexError: There is none.
        """
        return self._pop(0)

    @property
    def first(self) -> Task | None:
        """The task that no other one may delay."""
        return self._tasks[0] if self._tasks else None

    def _pop(self, place: int) -> Task:
        self._taken_from = place
        return self._tasks.pop(place)

    def take(
        self, now: float, free: Capacity, running: Collection[Running], before: Capacity | None = None
    ) -> Task | None:
        """Take out the task to begin now; None if none may begin.

        Args:
            now: Seconds, on the clock of `running`.
            free: The free capacity: less than what `running` leaves if other runs use the host, too.
            running: What has begun and not ended.
            before: What a task waits for that precedes all of these, and has been taken out already.
        """
        if not self._tasks:
            return None
        wanted = self._room(self._tasks[0]) if before is None else before
        if before is None and free.holds(wanted):
            return self._pop(0)
        place = self._behind(wanted, 1 if before is None else 0, now, free, running)
        return None if place is None else self._pop(place)

    def _room(self, task: Task) -> Capacity:
        return task.room.within(self._total)

    def _behind(
        self, wanted: Capacity, place_from: int, now: float, free: Capacity, running: Collection[Running]
    ) -> int | None:
        """The place of a task that does not delay the one that wants this capacity."""
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
        """When this capacity is expected to be free, and what is free beside it then."""
        for ends, each in sorted(((_end(each, now), each) for each in running), key=lambda pair: pair[0]):
            free = free.plus(self._room(each.task))
            if free.holds(wanted):
                return ends, free.minus(wanted)
        # Other runs hold what it needs for an unknown time: a task that takes part of that may delay it.
        return now, Capacity(*(max(have - want, 0) for have, want in zip(free, wanted, strict=True)))


def _end(each: Running, now: float) -> float:
    expected = each.began + each.task.seconds
    return expected if now < expected else now + _OVERTIME * (now - each.began)


class Stay(NamedTuple):
    """When a task began and ended, in seconds from the beginning."""

    task: Task
    began: float
    ended: float


def simulate(
    tasks: Iterable[Task], total: Capacity, seconds: Callable[[Task], float] = attrgetter("seconds")
) -> list[Stay]:
    """Simulate a run of tasks in this order of importance.

    Args:
        tasks: The most important first.
        total: What the host has.
        seconds: How long a task really takes; default: as long as expected.

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
"""This many times the lower bound is good enough."""

EFFORT: Final = 15_000
"""Most tasks that the search for a better order places, over all tries: less than a second."""

TRIES: Final = 100
"""Most tries for each task, if there are few tasks."""


def ordered(tasks: Sequence[Task], total: Capacity, *, effort: int = EFFORT) -> list[Task]:
    """The tasks, the most important first. The same tasks in the same order give the same result."""
    wanted, chance = lower_bound(tasks, total) * GOOD, random.Random(len(tasks))  # noqa: S311 - the same every time
    keys, left = iter(_keys(total)), min(effort, TRIES * len(tasks) ** 2)
    best, least = list[Task](), float("inf")
    while len(best) < len(tasks) or (left > 0 and least > wanted):
        key = next(keys, None)
        order = sorted(tasks, key=key) if key else _one_moved(best, chance)
        left -= len(order)
        if (seconds := makespan(simulate(order, total))) <= least:
            best, least = order, seconds
    return best


def _one_moved(order: Sequence[Task], chance: random.Random) -> list[Task]:
    moved = list(order)
    task = moved.pop(chance.randrange(len(order)))
    moved.insert(chance.randrange(len(order)), task)
    return moved


def _keys(total: Capacity) -> tuple[Callable[[Task], float], ...]:
    """Longest first; largest time by part of the host; largest part; longest of those above half the host."""

    def part(task: Task) -> float:
        return max((amount / most for amount, most in zip(task.room, total, strict=True) if most), default=0.0)

    return (
        lambda task: -task.seconds,
        lambda task: -task.seconds * part(task),
        lambda task: -part(task),
        lambda task: -task.seconds * (part(task) > 0.5),
    )

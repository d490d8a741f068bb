"""What the scheduler would do with tasks whose lengths are known: the same code, without a clock."""

import heapq
from collections.abc import Callable, Iterable
from typing import NamedTuple

from allranks.schedule.packing.backlog import Backlog
from allranks.schedule.packing.task import Room, Running, Task


class Stay(NamedTuple):
    """From when to when a task ran, in seconds from the beginning."""

    task: Task
    began: float
    ended: float


def _as_expected(task: Task) -> float:
    return task.seconds


def simulate(tasks: Iterable[Task], total: Room, seconds: Callable[[Task], float] = _as_expected) -> list[Stay]:
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

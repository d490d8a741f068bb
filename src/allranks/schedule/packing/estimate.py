"""The demand of a job, the resources of a host, and the expected durations of jobs."""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from allranks.matrix.model import Job

if TYPE_CHECKING:
    from allranks.report.durations import Durations


class Capacity(NamedTuple):
    """An amount of each resource that jobs share."""

    gpus: int = 0
    cores: int = 0
    memory: int = 0  # MiB

    def holds(self, other: Self) -> bool:
        """Whether the other amount fits in, for each resource."""
        return self.gpus >= other.gpus and self.cores >= other.cores and self.memory >= other.memory

    def plus(self, other: Self) -> "Capacity":
        """Both together."""
        return Capacity(self.gpus + other.gpus, self.cores + other.cores, self.memory + other.memory)

    def minus(self, other: Self) -> "Capacity":
        """The rest without the other; negative where that does not fit in."""
        return Capacity(self.gpus - other.gpus, self.cores - other.cores, self.memory - other.memory)

    def within(self, most: Self) -> "Capacity":
        """This, capped at the total of each resource: a task that asks for more runs alone."""
        return Capacity(min(self.gpus, most.gpus), min(self.cores, most.cores), min(self.memory, most.memory))


@dataclass(frozen=True, slots=True)
class Task:
    """A job as the scheduler sees it."""

    number: int
    room: Capacity
    seconds: float


class Running(NamedTuple):
    """A task that has begun."""

    task: Task
    began: float  # seconds, on the caller's clock


def lower_bound(tasks: Sequence[Task], total: Capacity) -> float:
    """Seconds that no schedule can beat: the longest task, and for each resource all work over the total."""
    longest = max((task.seconds for task in tasks), default=0.0)
    work = [sum(task.room[kind] * task.seconds for task in tasks) for kind, _ in enumerate(total)]
    return max(longest, *(amount / most for amount, most in zip(work, total, strict=True) if most), 0.0)


OVERHEAD: Final = 3.0
"""Seconds of a job beside its tests: torch's import, and a container (``benchmarks/cell_overhead.py``)."""

GUESS: Final = 60.0
"""Seconds of a job if no job has been measured."""


class Expected(NamedTuple):
    """The expected duration of a job."""

    seconds: float
    is_measured: bool  # whether its tests have been measured, under its backend


def seconds_of_tests(durations: "Durations", job: Job) -> float | None:
    """Expected seconds of a job's tests, by earlier ones of its suite under its backend; None if there are none."""
    tests = durations.get(job.suite.name, {}).get(job.cell.backend, {})
    return sum(tests.values()) / (job.shard.count if job.shard else 1) if tests else None


def expected(durations: "Durations", jobs: Sequence[Job]) -> list[Expected]:
    """What each job is expected to take; one that was never measured counts as the median of the others."""
    # Of a hundred thousand jobs most share suite and backend.
    known = {(job.suite.name, job.cell.backend, job.shard and job.shard.count): job for job in jobs}
    seconds = {kind: seconds_of_tests(durations, job) for kind, job in known.items()}
    each = [seconds[job.suite.name, job.cell.backend, job.shard and job.shard.count] for job in jobs]
    measured = sorted(one + OVERHEAD for one in each if one is not None)
    usual = measured[len(measured) // 2] if measured else GUESS
    return [Expected(usual, False) if one is None else Expected(one + OVERHEAD, True) for one in each]


def share(room: Capacity, total: Capacity) -> float:
    """The part of a host that a task takes: a third if three like it fit side by side, all of it at most."""
    fit = [most // amount for amount, most in zip(room.within(total), total, strict=True) if amount]
    return 1.0 / max(1, min(fit)) if fit else 0.0


def packed_seconds(tasks: Iterable[Task], total: Capacity) -> float:
    """Expected seconds of a host for tasks: those that take most of it first, and the longest of them.

    Close to :func:`~allranks.schedule.packing.backlog.simulate`, in a fraction of its time: tasks of one room form one
    queue, and only the head of each is considered.
    """
    lines = _lines(tasks, total)
    now, ends, (gpus, cores, memory) = 0.0, list[tuple[float, Capacity]](), total
    while lines:
        for line in lines:
            room, seconds = line
            # Capacity.holds, inlined: the call would take most of the time here.
            while seconds and room[0] <= gpus and room[1] <= cores and room[2] <= memory:
                heapq.heappush(ends, (now + seconds.pop(), room))
                gpus, cores, memory = gpus - room[0], cores - room[1], memory - room[2]
        lines = [line for line in lines if line[1]]
        if lines:
            now, room = heapq.heappop(ends)
            gpus, cores, memory = gpus + room[0], cores + room[1], memory + room[2]
    return max((end for end, _ in ends), default=0.0)


def _lines(tasks: Iterable[Task], total: Capacity) -> list[tuple[Capacity, list[float]]]:
    """Seconds by room, the largest room first and the longest last."""
    by_room: dict[Capacity, list[float]] = {}
    for task in tasks:
        by_room.setdefault(task.room, []).append(task.seconds)
    lines: dict[Capacity, list[float]] = {}
    for room, seconds in by_room.items():
        lines.setdefault(room.within(total), []).extend(seconds)
    for line in lines.values():
        line.sort()
    return sorted(lines.items(), key=lambda line: (-share(line[0], total), line[0]))

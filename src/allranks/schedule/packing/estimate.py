"""How long jobs are expected to run, one by one and together on one host."""

import heapq
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from allranks.matrix.model import Job
from allranks.schedule.packing.task import Room, Task

if TYPE_CHECKING:
    from allranks.report.durations import Durations

OVERHEAD: Final = 3.0
"""Seconds of a job beside its tests: torch's import, and a container (``benchmarks/cell_overhead.py``)."""

GUESS: Final = 60.0
"""Seconds of a job where nothing is known of any."""


class Expected(NamedTuple):
    """What a job is expected to take.

    Attributes:
        is_measured: Whether its tests have been measured, under its backend.
    """

    seconds: float
    is_measured: bool


def seconds_of_tests(durations: "Durations", job: Job) -> float | None:
    """Seconds that a job's tests may take, by what its suite's took under its backend; None where nobody knows."""
    tests = durations.get(job.suite.name, {}).get(job.cell.backend, {})
    return sum(tests.values()) / (job.shard.count if job.shard else 1) if tests else None


def expected(durations: "Durations", jobs: Sequence[Job]) -> list[Expected]:
    """What each of some jobs is expected to take; one that nothing is known of counts as the median of the others."""
    # Of a hundred thousand jobs most share suite and backend.
    known = {(job.suite.name, job.cell.backend, job.shard and job.shard.count): job for job in jobs}
    seconds = {kind: seconds_of_tests(durations, job) for kind, job in known.items()}
    each = [seconds[job.suite.name, job.cell.backend, job.shard and job.shard.count] for job in jobs]
    measured = sorted(one + OVERHEAD for one in each if one is not None)
    usual = measured[len(measured) // 2] if measured else GUESS
    return [Expected(usual, False) if one is None else Expected(one + OVERHEAD, True) for one in each]


def share(room: Room, total: Room) -> float:
    """The part of a host that a task takes: a third where three like it fit side by side, all of it at most."""
    fit = [most // amount for amount, most in zip(room.within(total), total, strict=True) if amount]
    return 1.0 / max(1, min(fit)) if fit else 0.0


def packed_seconds(tasks: Iterable[Task], total: Room) -> float:
    """Seconds in which a host is expected to be done with tasks: first those that take most of it, the longest of them.

    Near what :func:`~allranks.schedule.packing.simulation.simulate` comes to, in a fraction of its time: tasks of one
    room are one line, and only the first in each is looked at.
    """
    lines = _lines(tasks, total)
    now, ends, (gpus, cores, memory) = 0.0, list[tuple[float, Room]](), total
    while lines:
        for line in lines:
            room, seconds = line
            # Room.holds, which would take most of the time here.
            while seconds and room[0] <= gpus and room[1] <= cores and room[2] <= memory:
                heapq.heappush(ends, (now + seconds.pop(), room))
                gpus, cores, memory = gpus - room[0], cores - room[1], memory - room[2]
        lines = [line for line in lines if line[1]]
        if lines:
            now, room = heapq.heappop(ends)
            gpus, cores, memory = gpus + room[0], cores + room[1], memory + room[2]
    return max((end for end, _ in ends), default=0.0)


def _lines(tasks: Iterable[Task], total: Room) -> list[tuple[Room, list[float]]]:
    """Seconds by room, the largest room first and the longest last."""
    by_room: dict[Room, list[float]] = {}
    for task in tasks:
        by_room.setdefault(task.room, []).append(task.seconds)
    lines: dict[Room, list[float]] = {}
    for room, seconds in by_room.items():
        lines.setdefault(room.within(total), []).extend(seconds)
    for line in lines.values():
        line.sort()
    return sorted(lines.items(), key=lambda line: (-share(line[0], total), line[0]))

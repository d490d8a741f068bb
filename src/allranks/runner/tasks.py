"""Jobs as the scheduler sees them: what they take of a host, and how long."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from allranks.matrix.model import Job

if TYPE_CHECKING:
    from allranks.runner.durations import Durations


class Capacity(NamedTuple):
    """An amount of each resource that jobs share."""

    gpus: int = 0
    cores: int = 0
    memory: int = 0  # MiB

    def holds(self, other: Self) -> bool:
        """Whether the other amount fits in, for each resource."""
        return self.gpus >= other.gpus and self.cores >= other.cores and self.memory >= other.memory

    def minus(self, other: Self) -> "Capacity":
        """The rest without the other; negative where that does not fit in."""
        return Capacity(self.gpus - other.gpus, self.cores - other.cores, self.memory - other.memory)

    def within(self, most: Self) -> "Capacity":
        """This, capped at the total of each resource: a task that asks for more runs alone."""
        return Capacity(min(self.gpus, most.gpus), min(self.cores, most.cores), min(self.memory, most.memory))


@dataclass(frozen=True, slots=True)
class Task:
    """A job that waits to start."""

    number: int  # its place among all jobs
    demand: Capacity
    seconds: float  # its expected duration


def longest_first(tasks: Iterable[Task]) -> list[Task]:
    """The tasks in the order in which they start where there is room; of equally long ones those with most GPUs."""
    return sorted(tasks, key=lambda task: (-task.seconds, -task.demand.gpus))


OVERHEAD: Final = 3.0
"""Seconds of a job beside its tests: torch's import, and a container (``benchmarks/cell_overhead.py``)."""

GUESS: Final = 60.0
"""Seconds of a job if no job has been measured."""


class Expected(NamedTuple):
    """The expected duration of a job."""

    seconds: float
    is_measured: bool  # whether its tests have been measured, under its backend


def expected(durations: "Durations", jobs: Sequence[Job]) -> list[Expected]:
    """How long each job is expected to take; one that was never measured counts as the median of the others."""
    # Of a hundred thousand jobs most share suite and backend.
    known = {(job.suite.name, job.cell.backend, job.shard and job.shard.count): job for job in jobs}
    seconds = {kind: _seconds_of_tests(durations, job) for kind, job in known.items()}
    each = [seconds[job.suite.name, job.cell.backend, job.shard and job.shard.count] for job in jobs]
    measured = sorted(one + OVERHEAD for one in each if one is not None)
    usual = measured[len(measured) // 2] if measured else GUESS
    return [Expected(usual, False) if one is None else Expected(one + OVERHEAD, True) for one in each]


def _seconds_of_tests(durations: "Durations", job: Job) -> float | None:
    """Expected seconds of a job's tests, by earlier ones of its suite under its backend; None if there are none."""
    tests = durations.get(job.suite.name, {}).get(job.cell.backend, {})
    return sum(tests.values()) / (job.shard.count if job.shard else 1) if tests else None

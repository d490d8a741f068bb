"""The jobs of the scheduler: the resources that they need, and their expected durations."""

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
        """Whether the other amount fits."""
        return self.gpus >= other.gpus and self.cores >= other.cores and self.memory >= other.memory

    def minus(self, other: Self) -> "Capacity":
        """The difference; negative where the other amount does not fit."""
        return Capacity(self.gpus - other.gpus, self.cores - other.cores, self.memory - other.memory)

    def within(self, most: Self) -> "Capacity":
        """This amount, capped at `most`: a task that demands more than the host's capacity then runs alone."""
        return Capacity(min(self.gpus, most.gpus), min(self.cores, most.cores), min(self.memory, most.memory))


@dataclass(frozen=True, slots=True)
class Task:
    """A job that waits to start."""

    number: int  # the index of its job
    demand: Capacity
    seconds: float  # its expected duration


def longest_first(tasks: Iterable[Task]) -> list[Task]:
    """The tasks sorted by descending duration, then by descending number of GPUs."""
    return sorted(tasks, key=lambda task: (-task.seconds, -task.demand.gpus))


OVERHEAD: Final = 3.0
"""Seconds of a job in addition to its tests: torch's import, and a container (``benchmarks/cell_overhead.py``)."""

GUESS: Final = 60.0
"""Seconds of a job if no job has been measured."""


class Expected(NamedTuple):
    """The expected duration of a job."""

    seconds: float
    is_measured: bool  # whether its suite has been measured with its backend


def expected(durations: "Durations", jobs: Sequence[Job]) -> list[Expected]:
    """The expected duration of each job; for a job that was never measured, the median of the measured ones."""
    # Cached by suite, backend and shard count: a plan may have a hundred thousand jobs, most of which share these.
    kinds = [(job.suite.name, job.cell.backend, job.shard and job.shard.count) for job in jobs]
    seconds = {kind: _seconds_of_tests(durations, job) for kind, job in dict(zip(kinds, jobs, strict=True)).items()}
    measured = sorted(known + OVERHEAD for kind in kinds if (known := seconds[kind]) is not None)
    median = measured[len(measured) // 2] if measured else GUESS
    return [
        Expected(median, False) if (known := seconds[kind]) is None else Expected(known + OVERHEAD, True)
        for kind in kinds
    ]


def _seconds_of_tests(durations: "Durations", job: Job) -> float | None:
    """The expected seconds of a job's tests; None if its suite was never measured with its backend."""
    tests = durations.get(job.suite.name, {}).get(job.cell.backend, {})
    return sum(tests.values()) / (job.shard.count if job.shard else 1) if tests else None

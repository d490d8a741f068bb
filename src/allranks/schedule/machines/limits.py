"""The time limits of a pack, each inside the next: job < run < step of the CI < job of the CI."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from allranks.matrix.model import Job, Limits
from allranks.schedule.packing.estimate import Expected, packed_seconds
from allranks.schedule.packing.task import Room, Task

START_MINUTES: Final = 20
"""From a run's start to its first job's: images are built on first use, which takes minutes where nothing is cached."""

STOP_MINUTES: Final = 5
"""What a run needs to end in order when its time is over: jobs get up to a minute, then results are merged."""

AROUND_MINUTES: Final = 15
"""What a job of the CI does beside its run: check out, install, get images, and take the results away."""

MEASURED_SLACK: Final = 2.0
GUESSED_SLACK: Final = 10.0
"""How many times what is expected a job may take before it uses up the time of others."""


@dataclass(frozen=True, kw_only=True)
class PackLimits:
    """What a pack may take.

    Attributes:
        run: Seconds, until allranks itself ends the run in order.
        step_minutes: Until the CI ends the step.
        job_minutes: Until the CI ends the job.
    """

    run: float
    step_minutes: int
    job_minutes: int


def limit_of(job: Job, limits: Limits) -> float:
    """Seconds that a job may take by its own limit."""
    return limits.job + (limits.assembly if job.cell.nodes > 1 else 0.0)


def allowed(job: Job, expected: Expected, limits: Limits) -> float:
    """Seconds that are set aside for a job: more than is expected, and no more than its own limit."""
    slack = MEASURED_SLACK if expected.is_measured else GUESSED_SLACK
    return min(slack * expected.seconds, limit_of(job, limits))


def pack_limits(tasks: Sequence[Task], total: Room, own_limit: float) -> PackLimits:
    """The limits of a pack, in which the last job to begin has all of its own limit left.

    Args:
        tasks: The pack's jobs, at least one, with the seconds that are set aside for each.
        total: What its machine has.
        own_limit: The longest limit that a job of the pack has, in seconds.
    """
    last_begins = packed_seconds(tasks, total) - min(task.seconds for task in tasks)
    run_minutes = ceil((last_begins + own_limit) / 60) + START_MINUTES
    step = run_minutes + STOP_MINUTES
    return PackLimits(run=60.0 * run_minutes, step_minutes=step, job_minutes=step + AROUND_MINUTES)

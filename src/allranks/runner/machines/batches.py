"""Divides jobs into batches of about the same duration, one for each CI machine.

The jobs of a batch share a runner and an image. All functions raise UsageError for jobs that cannot be divided.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import ceil, inf
from typing import Final

from allranks.errors import UsageError
from allranks.matrix.model import Job, Matrix, RunnerRule
from allranks.matrix.runners import cores_of, minutes_of, runner_for
from allranks.protocol.grouping import by_key
from allranks.runner.durations import Durations
from allranks.runner.request import demand_of, time_limit
from allranks.runner.tasks import Capacity, Expected, Task, expected, longest_first

START_MINUTES: Final = 20
"""Time until the first job of a run starts: without a cache, its image is built first."""

STOP_MINUTES: Final = 5
"""Time for a run to end after its time limit: jobs get up to a minute to stop, then results are merged."""

CI_JOB_MINUTES: Final = 15
"""Time of a CI job in addition to its run: checkout, installation, loading images, and upload of the results."""

MEASURED_SLACK: Final = 2.0
GUESSED_SLACK: Final = 10.0
"""The factor by which a job may exceed its expected duration before it uses up the time of other jobs."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The jobs of one machine."""

    slug: str = ""  # its name, valid for files and artifacts: ``cuda-g4-03of12``
    rule: RunnerRule
    image: str
    jobs: tuple[int, ...]  # indexes among all planned jobs
    gpus: int  # the maximum of its jobs
    seconds: float  # its expected duration
    run_minutes: int  # the time limit of the run

    @property
    def step_minutes(self) -> int:
        """The time limit of the CI step."""
        return self.run_minutes + STOP_MINUTES

    @property
    def job_minutes(self) -> int:
        """The time limit of the CI job."""
        return self.step_minutes + CI_JOB_MINUTES


@dataclass(frozen=True, kw_only=True)
class BatchGroup:
    """Jobs that may share a machine."""

    rule: RunnerRule
    image: str
    tasks: tuple[Task, ...]  # with numbers that are indexes among all planned jobs
    reserved: Sequence[float]  # seconds reserved for each planned job
    longest_limit: float  # the longest time limit of these jobs, in seconds

    @property
    def total(self) -> Capacity:
        """The resources of a machine, except for its memory, which is unknown."""
        return Capacity(gpus=self.rule.gpus, cores=cores_of(self.rule))

    def batches(self, seconds: float) -> list[Batch]:
        """Batches of about this duration, or shorter if their CI jobs would exceed the rule's time limit."""
        longest = max(task.seconds for task in self.tasks)
        count = max(1, round(sum(work(task, self.total) for task in self.tasks) / max(seconds, longest)))
        most = minutes_of(self.rule)
        while True:
            count = min(count, len(self.tasks))
            batches = [self.batch(tasks) for tasks in distribute(self.tasks, self.total, count)]
            latest = max(batch.job_minutes for batch in batches)
            if latest <= most:
                return batches
            count = max(count + 1, ceil(count * latest / most))

    def batch(self, tasks: Sequence[Task]) -> Batch:
        """A batch of these tasks, with enough time for the last one to use its whole time limit."""
        longest, *others = longest_first(replace(task, seconds=self.reserved[task.number]) for task in tasks)
        # In the worst case, the longest job runs alone first, and then the others share the machine.
        last_starts = (longest.seconds + sum(work(task, self.total) for task in others)) if others else 0.0
        return Batch(
            rule=self.rule,
            image=self.image,
            jobs=tuple(sorted(task.number for task in tasks)),
            gpus=max(task.demand.gpus for task in tasks),
            seconds=max(*(task.seconds for task in tasks), sum(work(task, self.total) for task in tasks)),
            run_minutes=START_MINUTES + ceil((last_starts + self.longest_limit) / 60),
        )


def work(task: Task, total: Capacity) -> float:
    """The work of a task, in seconds of a whole machine: half of its duration if two such tasks fit."""
    concurrent = min((most // part for part, most in zip(task.demand, total, strict=True) if part and most), default=1)
    return task.seconds / max(1, concurrent)


def distribute(tasks: Sequence[Task], total: Capacity, count: int) -> list[list[Task]]:
    """Distribute tasks over `count` machines, longest first, each to the machine with the least work."""
    batches: list[list[Task]] = [[] for _ in range(count)]
    heap = [(0.0, 0, index) for index in range(count)]
    for task in longest_first(tasks):
        least, size, index = heap[0]
        batches[index].append(task)
        # With the same work, the machine with fewer tasks comes first, so that none stays empty.
        heapq.heapreplace(heap, (least + work(task, total), size + 1, index))
    return batches


def groups_of(matrix: Matrix, jobs: Sequence[Job], durations: Sequence[Expected]) -> list[BatchGroup]:
    """Group jobs by rule and image.

    Raises:
        UsageError: No machine matches a job, or the job's time limit exceeds the CI job's.
    """
    indexes = by_key(((runner_for(matrix, job.cell), job.image.name), index) for index, job in enumerate(jobs))
    reserved = [_reserve(duration, time_limit(matrix, job)) for duration, job in zip(durations, jobs, strict=True)]
    groups, demands = [], dict[tuple[int, int, int], Capacity]()
    for (rule, image), own in indexes.items():
        longest = max((jobs[index] for index in own), key=lambda job: time_limit(matrix, job))
        group = BatchGroup(
            rule=rule,
            image=image,
            tasks=tuple(Task(index, _demand(matrix, jobs[index], demands), durations[index].seconds) for index in own),
            reserved=reserved,
            longest_limit=time_limit(matrix, longest),
        )
        _check_time_limit(group, longest)
        groups.append(group)
    return groups


def _reserve(expected: Expected, limit: float) -> float:
    """The seconds to reserve for a job: more than its expected duration, at most its time limit."""
    slack = MEASURED_SLACK if expected.is_measured else GUESSED_SLACK
    return min(slack * expected.seconds, limit)


def _demand(matrix: Matrix, job: Job, known: dict[tuple[int, int, int], Capacity]) -> Capacity:
    """The demand of a job, cached by kind; without memory, since a machine's memory is unknown."""
    kind = job.cell.world_size, job.cell.gpu_count, job.suite.overlap
    if kind not in known:
        known[kind] = demand_of(matrix, job, gpus=job.cell.gpu_count)._replace(memory=0)
    return known[kind]


def _check_time_limit(group: BatchGroup, longest: Job) -> None:
    """Reject jobs that CI would end before their own time limit, even if alone on a machine."""
    needed, most = group.batch(group.tasks[:1]).job_minutes, minutes_of(group.rule)
    if needed > most:
        what = f"The job {longest.id} does not fit into the {most} minutes of a CI job on {group.rule.runs_on}."
        why = (
            f"Its limit is {group.longest_limit:g} s; starting, installing and stopping raise that to {needed} minutes."
        )
        raise UsageError(what, why=why, remedy="Lower limits.job. GitHub's machines allow 360 minutes, and yours 7200.")


@dataclass(frozen=True, kw_only=True)
class Division:
    """All batches."""

    groups: tuple[tuple[Batch, ...], ...]  # by rule and image, in the order of the jobs
    guessed: int  # the number of jobs that have never been measured

    @property
    def batches(self) -> tuple[Batch, ...]:
        """The batches of all groups."""
        return tuple(chain(*self.groups))


def divide_jobs(matrix: Matrix, jobs: Sequence[Job], durations: Durations, *, most: int, minutes: int) -> Division:
    """Divide jobs into at most `most` batches, each with about `minutes` of work; the result is deterministic.

    Raises:
        UsageError: No machine matches a job, a job's time limit exceeds the CI job's, or more batches are needed.
    """
    foreseen = expected(durations, jobs)
    groups, seconds = groups_of(matrix, jobs, foreseen), minutes * 60.0
    if (fewest := sum(len(group.batches(inf)) for group in groups)) > most:
        what = f"The plan needs at least {fewest} entries of the job matrix, and the limit is {most}."
        why = "All jobs of an entry have the same rule and image, and must end within the minutes of its CI job."
        remedy = "Plan fewer cells with --where."
        raise UsageError(what, why=why, remedy=remedy)
    batches = [group.batches(seconds) for group in groups]
    while (count := sum(map(len, batches))) > most:
        seconds *= max(1.05, count / most)
        batches = [group.batches(seconds) for group in groups]
    return Division(groups=_with_slugs(batches), guessed=sum(not duration.is_measured for duration in foreseen))


LONGEST_IMAGE: Final = 40
"""Characters of an image's name in a slug."""


def _with_slugs(groups: Iterable[Sequence[Batch]]) -> tuple[tuple[Batch, ...], ...]:
    """The batches with slugs of image, GPUs, index and count, which are unique regardless of case."""
    taken = Counter[str]()
    named = []
    for batches in groups:
        stem = f"{batches[0].image[:LONGEST_IMAGE].lower() or 'no-image'}-g{max(batch.gpus for batch in batches)}"
        taken[stem] += 1
        stem += f"-r{taken[stem]}" if taken[stem] > 1 else ""
        count, width = len(batches), len(str(len(batches)))
        named.append(
            tuple(replace(batch, slug=f"{stem}-{number:0{width}}of{count}") for number, batch in enumerate(batches, 1))
        )
    return tuple(named)

"""Divides jobs into packs, one for each CI machine: by runner and image, evenly, with limits.

Jobs that cannot be divided so are a UsageError.
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
from allranks.runner.durations import Durations
from allranks.runner.request import demand_of, time_limit
from allranks.runner.tasks import Capacity, Expected, Task, expected, longest_first

START_MINUTES: Final = 20
"""From a run's start to its first job's: images are built on first use, which takes minutes where nothing is cached."""

STOP_MINUTES: Final = 5
"""What a run needs for an orderly end when its time is over: jobs get up to a minute, then results are merged."""

AROUND_MINUTES: Final = 15
"""What a CI job needs beside its run: check-out, installation, images, and upload of the results."""

MEASURED_SLACK: Final = 2.0
GUESSED_SLACK: Final = 10.0
"""How many times its expected duration a job may take before it uses up the time of others."""


@dataclass(frozen=True, kw_only=True)
class Pack:
    """The jobs of one machine."""

    slug: str = ""  # its name, valid for files and artifacts: ``cuda-g4-03of12``
    rule: RunnerRule
    image: str
    jobs: tuple[int, ...]
    gpus: int  # the most GPUs that one of them needs
    seconds: float  # how long it is expected to run
    run_minutes: int  # until allranks itself ends the run, in an orderly way

    @property
    def step_minutes(self) -> int:
        """Minutes until the CI ends the step."""
        return self.run_minutes + STOP_MINUTES

    @property
    def job_minutes(self) -> int:
        """Minutes until the CI ends the job."""
        return self.step_minutes + AROUND_MINUTES


@dataclass(frozen=True, kw_only=True)
class PackGroup:
    """Jobs that may share a machine."""

    rule: RunnerRule
    image: str
    tasks: tuple[Task, ...]  # the jobs, by their numbers among all that are planned, with their expected durations
    set_aside: Sequence[float]  # seconds for each job that is planned, by its number: more than it is expected to take
    own_limit: float  # the longest limit that one of them has, in seconds

    @property
    def total(self) -> Capacity:
        """The resources of a machine, as far as the matrix file says: its memory is unknown."""
        return Capacity(gpus=self.rule.gpus, cores=cores_of(self.rule))

    def packs(self, seconds: float) -> list[Pack]:
        """Packs that take about this long; more of them where one would not end within the minutes of the rule."""
        longest = max(task.seconds for task in self.tasks)
        count = max(1, round(sum(work(task, self.total) for task in self.tasks) / max(seconds, longest)))
        most = minutes_of(self.rule)
        while True:
            count = min(count, len(self.tasks))
            packs = [self.pack(tasks) for tasks in shared_out(self.tasks, self.total, count)]
            latest = max(pack.job_minutes for pack in packs)
            if latest <= most:
                return packs
            count = max(count + 1, ceil(count * latest / most))

    def pack(self, tasks: Sequence[Task]) -> Pack:
        """A pack of these tasks, whose time leaves the last one to start all of its own limit."""
        set_aside = [replace(task, seconds=self.set_aside[task.number]) for task in tasks]
        longest, *others = longest_first(set_aside)
        # The longest may have had the machine to itself, and the others have shared it, before the last one starts.
        last_starts = (longest.seconds + sum(work(task, self.total) for task in others)) if others else 0.0
        return Pack(
            rule=self.rule,
            image=self.image,
            jobs=tuple(sorted(task.number for task in tasks)),
            gpus=max(task.demand.gpus for task in tasks),
            seconds=max(*(task.seconds for task in tasks), sum(work(task, self.total) for task in tasks)),
            run_minutes=START_MINUTES + ceil((last_starts + self.own_limit) / 60),
        )


def work(task: Task, total: Capacity) -> float:
    """The work of a task, in seconds of a whole machine: half of its seconds if two like it run side by side."""
    beside = min((most // part for part, most in zip(task.demand, total, strict=True) if part and most), default=1)
    return task.seconds / max(1, beside)


def shared_out(tasks: Sequence[Task], total: Capacity, count: int) -> list[list[Task]]:
    """Tasks for each machine: the longest first, each for the one with the least work; `count` is at most theirs."""
    packs: list[list[Task]] = [[] for _ in range(count)]
    heap = [(0.0, 0, number) for number in range(count)]
    for task in longest_first(tasks):
        least, size, number = heap[0]
        packs[number].append(task)
        # Of machines with as much work, the one with fewer tasks: none stays empty.
        heapq.heapreplace(heap, (least + work(task, total), size + 1, number))
    return packs


def groups_of(matrix: Matrix, jobs: Sequence[Job], foreseen: Sequence[Expected]) -> list[PackGroup]:
    """Jobs by rule and image, in their order.

    Raises:
        UsageError: No machine takes a job, or it does not fit into the time that the CI gives it.
    """
    numbers: dict[tuple[RunnerRule, str], list[int]] = {}
    for number, job in enumerate(jobs):
        numbers.setdefault((runner_for(matrix, job.cell), job.image.name), []).append(number)
    set_aside = [_set_aside(each, time_limit(matrix, job)) for each, job in zip(foreseen, jobs, strict=True)]
    groups, rooms = [], dict[tuple[int, int, int], Capacity]()
    for (rule, image), own in numbers.items():
        longest = max((jobs[number] for number in own), key=lambda job: time_limit(matrix, job))
        group = PackGroup(
            rule=rule,
            image=image,
            tasks=tuple(Task(number, _room(matrix, jobs[number], rooms), foreseen[number].seconds) for number in own),
            set_aside=set_aside,
            own_limit=time_limit(matrix, longest),
        )
        _refuse_what_never_fits(group, longest)
        groups.append(group)
    return groups


def _set_aside(expected: Expected, limit: float) -> float:
    """Seconds for a job: more than is expected, and no more than its own limit."""
    slack = MEASURED_SLACK if expected.is_measured else GUESSED_SLACK
    return min(slack * expected.seconds, limit)


def _room(matrix: Matrix, job: Job, known: dict[tuple[int, int, int], Capacity]) -> Capacity:
    """The demand of a job on a machine, cached by kind; without memory, since that of a machine is unknown."""
    kind = job.cell.world_size, job.cell.gpu_count, job.suite.overlap
    if kind not in known:
        known[kind] = demand_of(matrix, job, gpus=job.cell.gpu_count)._replace(memory=0)
    return known[kind]


def _refuse_what_never_fits(group: PackGroup, longest: Job) -> None:
    """Refuse jobs that the CI would end before their own limit does, even alone on a machine."""
    needs, most = group.pack(group.tasks[:1]).job_minutes, minutes_of(group.rule)
    if needs > most:
        what = f"The job {longest.id} does not fit into the {most} minutes that it gets on {group.rule.runs_on}."
        why = f"Its own limit is {group.own_limit:g} s; with the time around it, that makes {needs} minutes."
        raise UsageError(what, why=why, remedy="Lower limits.job, or send the cell to machines with more minutes.")


@dataclass(frozen=True, kw_only=True)
class Division:
    """All packs."""

    groups: tuple[tuple[Pack, ...], ...]  # by rule and image, in the order of the jobs
    guessed: int  # how many of the jobs have never been measured

    @property
    def packs(self) -> tuple[Pack, ...]:
        """Those of all groups."""
        return tuple(chain(*self.groups))


def divide_jobs(matrix: Matrix, jobs: Sequence[Job], durations: Durations, *, most: int, minutes: int) -> Division:
    """At most so many packs of jobs, each with so many minutes of work; the same ones for the same jobs and durations.

    Raises:
        UsageError: No machine takes a job, a job does not fit into the time that the CI gives it, or there are not
            enough packs for all.
    """
    foreseen = expected(durations, jobs)
    groups, seconds = groups_of(matrix, jobs, foreseen), minutes * 60.0
    if (fewest := sum(len(group.packs(inf)) for group in groups)) > most:
        what = f"{fewest} entries of the job matrix are needed, over the limit of {most}."
        why = f"There are {len(groups)} combinations of rule and image, and each pack has to end within its minutes."
        remedy = "Allow more entries or minutes, or plan a part of the cells with --where."
        raise UsageError(what, why=why, remedy=remedy)
    packs = [group.packs(seconds) for group in groups]
    while (count := sum(map(len, packs))) > most:
        seconds *= max(1.05, count / most)
        packs = [group.packs(seconds) for group in groups]
    return Division(groups=_named(packs), guessed=sum(not each.is_measured for each in foreseen))


LONGEST_IMAGE: Final = 40
"""Characters of an image's name in a slug."""


def _named(groups: Iterable[Sequence[Pack]]) -> tuple[tuple[Pack, ...], ...]:
    """The packs with their slugs, unique regardless of case: image, GPUs, and their number among how many."""
    taken = Counter[str]()
    named = []
    for packs in groups:
        stem = f"{packs[0].image[:LONGEST_IMAGE].lower() or 'no-image'}-g{max(pack.gpus for pack in packs)}"
        taken[stem] += 1
        stem += f"-r{taken[stem]}" if taken[stem] > 1 else ""  # another group has the name
        count, width = len(packs), len(str(len(packs)))
        named.append(
            tuple(replace(pack, slug=f"{stem}-{number:0{width}}of{count}") for number, pack in enumerate(packs, 1))
        )
    return tuple(named)

"""Divides jobs into packs, one for each CI machine: by runner and image, evenly, with limits."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import Final

from allranks.errors import UsageError
from allranks.matrix.model import Job, Limits, Matrix, RunnerRule
from allranks.matrix.runners import cores_of, minutes_of, runner_for
from allranks.report.durations import Durations
from allranks.schedule.packing.division import Work, divide, host_counts
from allranks.schedule.packing.estimate import Capacity, Expected, Task, expected, packed_seconds
from allranks.schedule.request import room_of

MOST_ENTRIES: Final = 256
"""Most jobs that GitHub makes of one matrix (https://docs.github.com/actions/reference/limits)."""

MINUTES_PER_ENTRY: Final = 20
"""Default work of a machine: its start alone costs a minute or two."""


@dataclass(frozen=True, kw_only=True)
class PackOptions:
    """How to divide jobs."""

    most: int = MOST_ENTRIES
    minutes: int = MINUTES_PER_ENTRY


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
class PackLimits:
    """The limits of a pack."""

    run: float  # seconds until allranks itself ends the run, in an orderly way
    step_minutes: int  # until the CI ends the step
    job_minutes: int  # until the CI ends the job


def limit_of(job: Job, limits: Limits) -> float:
    """Seconds that a job may take by its own limit."""
    return limits.job + (limits.assembly if job.cell.nodes > 1 else 0.0)


def allowed(job: Job, expected: Expected, limits: Limits) -> float:
    """Seconds that are set aside for a job: more than is expected, and no more than its own limit."""
    slack = MEASURED_SLACK if expected.is_measured else GUESSED_SLACK
    return min(slack * expected.seconds, limit_of(job, limits))


def pack_limits(tasks: Sequence[Task], total: Capacity, own_limit: float) -> PackLimits:
    """The limits of a pack, which leave the last job to begin all of its own limit.

    Args:
        tasks: The pack's jobs, at least one, with the seconds that are set aside for each.
        total: The resources of its machine.
        own_limit: The longest limit that a job of the pack has, in seconds.
    """
    last_begins = packed_seconds(tasks, total) - min(task.seconds for task in tasks)
    run_minutes = ceil((last_begins + own_limit) / 60) + START_MINUTES
    step = run_minutes + STOP_MINUTES
    return PackLimits(run=60.0 * run_minutes, step_minutes=step, job_minutes=step + AROUND_MINUTES)


@dataclass(frozen=True, kw_only=True)
class PackGroup:
    """Jobs that may share a machine."""

    rule: RunnerRule
    image: str
    total: Capacity
    tasks: tuple[Task, ...]  # the jobs, by their numbers among all that are planned, with their expected durations
    allowed: dict[int, float]  # seconds that are set aside for each, by its number
    own_limit: float  # the longest limit that one of them has, in seconds

    @cached_property
    def work(self) -> Work:
        """The total work of the group."""
        return Work(
            seconds=packed_seconds(self.tasks, self.total),
            longest=max(task.seconds for task in self.tasks),
            tasks=len(self.tasks),
        )

    def limits_of(self, tasks: Sequence[Task]) -> PackLimits:
        """The time limits of a pack of these tasks."""
        set_aside = [replace(task, seconds=self.allowed[task.number]) for task in tasks]
        return pack_limits(set_aside, self.total, self.own_limit)


def groups_of(matrix: Matrix, jobs: Sequence[Job], foreseen: Sequence[Expected]) -> list[PackGroup]:
    """Jobs by rule and image, in their order.

    Raises:
        UsageError: No machine takes a job, or it does not fit into the time that the CI gives it.
    """
    numbers: dict[tuple[RunnerRule, str], list[int]] = {}
    for number, job in enumerate(jobs):
        numbers.setdefault((runner_for(matrix, job.cell), job.image.name), []).append(number)
    groups, rooms = [], dict[tuple[int, int, int], Capacity]()
    for (rule, image), own in numbers.items():
        longest = max((jobs[number] for number in own), key=lambda job: limit_of(job, matrix.limits))
        group = PackGroup(
            rule=rule,
            image=image,
            total=Capacity(gpus=rule.gpus, cores=cores_of(rule)),
            tasks=tuple(Task(number, _room(matrix, jobs[number], rooms), foreseen[number].seconds) for number in own),
            allowed={number: allowed(jobs[number], foreseen[number], matrix.limits) for number in own},
            own_limit=limit_of(longest, matrix.limits),
        )
        _refuse_what_never_fits(group, longest)
        groups.append(group)
    return groups


def _room(matrix: Matrix, job: Job, known: dict[tuple[int, int, int], Capacity]) -> Capacity:
    """The demand of a job on a machine, cached by kind; without memory, since that of a machine is unknown."""
    kind = job.cell.world_size, job.cell.gpu_count, job.suite.overlap
    if kind not in known:
        known[kind] = room_of(matrix, job, gpus=job.cell.gpu_count)._replace(memory=0)
    return known[kind]


def _refuse_what_never_fits(group: PackGroup, longest: Job) -> None:
    """Refuse jobs that the CI would end before their own limit does, even alone on a machine.

    Raises:
        UsageError: There is one.
    """
    needs, most = group.limits_of(group.tasks[:1]).job_minutes, minutes_of(group.rule)
    if needs > most:
        what = f"The job {longest.id} does not fit into the {most} minutes that it gets on {group.rule.runs_on}."
        why = f"Its own limit is {group.own_limit:g} s; with the time around it, that makes {needs} minutes."
        raise UsageError(what, why=why, remedy="Lower limits.job, or send the cell to machines with more minutes.")


LONGEST_IMAGE: Final = 40
"""Characters of an image's name in a slug."""


@dataclass(frozen=True, kw_only=True)
class Pack:
    """The jobs of one machine."""

    slug: str  # its name, valid for files and artifacts: ``cuda-g4-03of12``
    rule: RunnerRule
    image: str
    jobs: tuple[int, ...]
    gpus: int  # the most GPUs that one of them needs
    seconds: float  # how long it is expected to run
    limits: PackLimits

    @property
    def group(self) -> tuple[RunnerRule, str]:
        """The traits that it shares with other packs that could have had its jobs."""
        return self.rule, self.image

    @property
    def engine(self) -> str | None:
        """The engine of its jobs; None if unspecified."""
        return self.rule.engine


@dataclass(frozen=True, kw_only=True)
class Division:
    """All packs."""

    packs: tuple[Pack, ...]  # group by group, in the order of the jobs
    jobs: int
    guessed: int  # how many of them have never been measured


def divide_jobs(matrix: Matrix, jobs: Sequence[Job], durations: Durations, wishes: PackOptions) -> Division:
    """Packs of jobs for the machines of a CI. The same jobs and durations give the same packs.

    Raises:
        UsageError: No machine takes a job, a job does not fit into the time that the CI gives it, or there are not
            enough packs for all.
    """
    foreseen = expected(durations, jobs)
    groups = groups_of(matrix, jobs, foreseen)
    packs = [pack for own in _packs(groups, wishes) for pack in own]
    named = tuple(replace(pack, slug=slug) for pack, slug in zip(packs, _slugs(packs), strict=True))
    return Division(packs=named, jobs=len(jobs), guessed=sum(not each.is_measured for each in foreseen))


def _packs(groups: Sequence[PackGroup], wishes: PackOptions) -> list[list[Pack]]:
    """For each group as many packs as wished, more if they would take too long, and never more than allowed.

    Raises:
        UsageError: More are needed than allowed.
    """
    works = [group.work for group in groups]
    known: dict[tuple[int, int], list[Pack]] = {}
    while True:
        if sum(work.least for work in works) > wishes.most:
            raise _too_many(works, wishes.most)
        counts = list(enumerate(host_counts(works, wishes.minutes * 60.0, wishes.most)))
        known |= {place: _divided(groups[place[0]], place[1]) for place in counts if place not in known}
        packs = [known[place] for place in counts]
        needed = [_needed(group, own) for group, own in zip(groups, packs, strict=True)]
        if all(more <= len(own) for more, own in zip(needed, packs, strict=True)):
            return packs
        works = [replace(work, least=max(work.least, more)) for work, more in zip(works, needed, strict=True)]


def _divided(group: PackGroup, count: int) -> list[Pack]:
    return [_pack(group, tasks) for tasks in divide(group.tasks, group.total, count)]


def _needed(group: PackGroup, packs: Sequence[Pack]) -> int:
    """The fewest packs that are needed, judged by these: one if all of them end in time."""
    latest, most = max(pack.limits.job_minutes for pack in packs), minutes_of(group.rule)
    return 1 if latest <= most else min(len(group.tasks), max(len(packs) + 1, ceil(len(packs) * latest / most)))


def _too_many(works: Sequence[Work], most: int) -> UsageError:
    what = f"{sum(work.least for work in works)} entries of the job matrix are needed, over the limit of {most}."
    why = f"There are {len(works)} combinations of runner rule and image, and each pack has to end within its minutes."
    return UsageError(what, why=why, remedy="Allow more entries or minutes, or plan a part of the cells with --where.")


def _pack(group: PackGroup, tasks: Sequence[Task]) -> Pack:
    return Pack(
        slug="",
        rule=group.rule,
        image=group.image,
        jobs=tuple(task.number for task in tasks),
        gpus=max(task.room.gpus for task in tasks),
        seconds=packed_seconds(tasks, group.total),
        limits=group.limits_of(tasks),
    )


def grouped(packs: Iterable[Pack]) -> list[list[Pack]]:
    """The packs by their groups, in order."""
    groups: dict[tuple[RunnerRule, str], list[Pack]] = {}
    for pack in packs:
        groups.setdefault(pack.group, []).append(pack)
    return list(groups.values())


def _slugs(packs: Sequence[Pack]) -> list[str]:
    """A name for each pack, unique regardless of case: image, GPUs, and its number among how many."""
    taken: set[str] = set()
    slugs: list[str] = []
    for own in grouped(packs):
        stem = _stem(f"{own[0].image[:LONGEST_IMAGE].lower()}-g{max(pack.gpus for pack in own)}", taken)
        width = len(str(len(own)))
        slugs += [f"{stem}-{number:0{width}}of{len(own)}" for number in range(1, len(own) + 1)]
    return slugs


def _stem(wanted: str, taken: set[str]) -> str:
    """The name, with a numbered suffix if another group has it."""
    stem, number = wanted, 1
    while stem in taken:
        number += 1
        stem = f"{wanted}-r{number}"
    taken.add(stem)
    return stem

"""From jobs to packs, one for each machine of a CI: by runner rule and image, with loads as even as jobs allow."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import Final

from allranks.errors import UsageError
from allranks.matrix.model import EngineName, Job, Limits, Matrix, RunnerRule
from allranks.matrix.runners import cores_of, minutes_of, runner_for
from allranks.report.durations import Durations
from allranks.schedule.machines.limits import PackLimits, allowed, limit_of, pack_limits
from allranks.schedule.machines.wishes import Wishes
from allranks.schedule.packing.division import divide, load
from allranks.schedule.packing.estimate import Expected, expected, packed_seconds
from allranks.schedule.packing.task import Room, Task
from allranks.schedule.request import room_of

LONGEST_IMAGE: Final = 40
"""Characters of an image's name in a slug."""


@dataclass(frozen=True, kw_only=True)
class Pack:
    """What one machine runs.

    Attributes:
        slug: Its name, good for files and artifacts: ``cuda-g4-03of12``.
        rule: The machines that it is for.
        image: Name of the image that its jobs run in.
        engine: Where its jobs run; None where nobody says.
        jobs: Numbers of its jobs among all that are planned, in order.
        gpus: The most GPUs that one of them needs.
        seconds: How long it is expected to run.
        limits: How long it may.
    """

    slug: str
    rule: RunnerRule
    image: str
    engine: EngineName | None
    jobs: tuple[int, ...]
    gpus: int
    seconds: float
    limits: PackLimits

    @property
    def group(self) -> tuple[RunnerRule, str, EngineName | None]:
        """What it has in common with the packs that its jobs might have been in as well."""
        return self.rule, self.image, self.engine


@dataclass(frozen=True, kw_only=True)
class Division:
    """All packs.

    Attributes:
        packs: Group by group, in the order of the jobs.
        jobs: How many jobs there are.
        guessed: How many of them nothing is known of.
    """

    packs: tuple[Pack, ...]
    jobs: int
    guessed: int


@dataclass(frozen=True, kw_only=True)
class _Group:
    """Jobs that may share a machine.

    Attributes:
        tasks: What they are expected to take.
        allowed: Seconds that are set aside for each, by its number.
        own_limit: The longest limit that one of them has, in seconds.
    """

    rule: RunnerRule
    image: str
    engine: EngineName | None
    total: Room
    tasks: tuple[Task, ...]
    allowed: dict[int, float]
    own_limit: float

    @cached_property
    def load(self) -> float:
        """Seconds of a whole machine."""
        return load(self.tasks, self.total)

    def limits_of(self, tasks: Sequence[Task]) -> PackLimits:
        set_aside = [replace(task, seconds=self.allowed[task.number]) for task in tasks]
        return pack_limits(set_aside, self.total, self.own_limit)

    def wanted(self, seconds: float, least: int) -> int:
        """How many packs, each of which takes about so long, or as long as the longest job."""
        each = max(seconds, *(task.seconds for task in self.tasks))
        return min(len(self.tasks), max(least, 1, round(self.load / each)))


def divide_jobs(matrix: Matrix, jobs: Sequence[Job], durations: Durations, wishes: Wishes) -> Division:
    """Packs of jobs for the machines of a CI. The same jobs and durations come to the same packs.

    Args:
        matrix: Says which machines there are.
        jobs: All that is to run, at least one.
        durations: What tests have taken.
        wishes: How many packs, and how large.

    Raises:
        UsageError: No machine takes a job, a job does not fit into the time that the CI gives it, or there are not
            enough packs for all.
    """
    foreseen = expected(durations, jobs)
    groups = _groups(matrix, jobs, foreseen)
    for group in groups:
        _refuse_what_never_fits(group, jobs, matrix.limits)
    packs = [pack for group, parts in _divided(groups, wishes) for pack in _packs(group, parts)]
    named = tuple(replace(pack, slug=slug) for pack, slug in zip(packs, _slugs(packs), strict=True))
    return Division(packs=named, jobs=len(jobs), guessed=sum(not each.is_measured for each in foreseen))


def _groups(matrix: Matrix, jobs: Sequence[Job], foreseen: Sequence[Expected]) -> list[_Group]:
    """Jobs by rule and image; those of several nodes apart, since the docker engine runs one."""
    numbers: dict[tuple[RunnerRule, str, bool], list[int]] = {}
    for number, job in enumerate(jobs):
        numbers.setdefault((runner_for(matrix, job.cell), job.image.name, job.cell.nodes > 1), []).append(number)
    return [
        _Group(
            rule=rule,
            image=image,
            engine=rule.engine or ("process" if is_wide else None),
            total=Room(gpus=rule.gpus, cores=cores_of(rule)),
            tasks=tuple(Task(number, _room(matrix, jobs[number]), foreseen[number].seconds) for number in own),
            allowed={number: allowed(jobs[number], foreseen[number], matrix.limits) for number in own},
            own_limit=max(limit_of(jobs[number], matrix.limits) for number in own),
        )
        for (rule, image, is_wide), own in numbers.items()
    ]


def _room(matrix: Matrix, job: Job) -> Room:
    """What a job takes of a machine; of its memory the matrix file says nothing."""
    return room_of(matrix, job, gpus=job.cell.gpu_count)._replace(memory=0)


def _refuse_what_never_fits(group: _Group, jobs: Sequence[Job], limits: Limits) -> None:
    """Refuse a job that alone takes longer than the CI gives it, should it hang.

    Raises:
        UsageError: There is one.
    """
    needs, most = group.limits_of(group.tasks[:1]).job_minutes, minutes_of(group.rule)
    if needs <= most:
        return
    job = max((jobs[task.number] for task in group.tasks), key=lambda job: limit_of(job, limits))
    what = f"The job {job.id} does not fit into the {most} minutes that a job may take on {group.rule.runs_on}."
    why = f"Its own limit is {limit_of(job, limits):g} s, and with what is around it that makes {needs} minutes."
    raise UsageError(what, why=why, remedy="Lower limits.job, or send the cell to machines with more minutes.")


def _divided(groups: Sequence[_Group], wishes: Wishes) -> list[tuple[_Group, list[list[Task]]]]:
    """Each group with its packs: as many as wished, more where they would take too long, and never more than may be.

    Raises:
        UsageError: More are needed than may be.
    """
    least = [1] * len(groups)
    while True:
        counts = _counts(groups, wishes, least)
        divided = [divide(group.tasks, group.total, count) for group, count in zip(groups, counts, strict=True)]
        needed = [_needed(group, parts) for group, parts in zip(groups, divided, strict=True)]
        if all(more <= count for more, count in zip(needed, counts, strict=True)):
            return list(zip(groups, divided, strict=True))
        least = [max(few, more) for few, more in zip(least, needed, strict=True)]


def _needed(group: _Group, parts: Sequence[Sequence[Task]]) -> int:
    """How many packs there have to be at least, as far as these tell: one, where all of them end in time."""
    latest = max(group.limits_of(tasks).job_minutes for tasks in parts)
    most = minutes_of(group.rule)
    return 1 if latest <= most else min(len(group.tasks), max(len(parts) + 1, ceil(len(parts) * latest / most)))


def _counts(groups: Sequence[_Group], wishes: Wishes, least: Sequence[int]) -> list[int]:
    """How many packs each group gets.

    Raises:
        UsageError: Even the fewest are more than may be.
    """
    if sum(least) > wishes.most:
        raise _too_many(groups, sum(least), wishes.most)
    seconds = wishes.minutes * 60.0
    while sum(counts := [g.wanted(seconds, few) for g, few in zip(groups, least, strict=True)]) > wishes.most:
        seconds *= 1.01
    return counts


def _too_many(groups: Sequence[_Group], needed: int, most: int) -> UsageError:
    what = f"{needed} entries of the CI's matrix are needed, and there may be {most}."
    why = f"There are {len(groups)} combinations of runner rule and image, and each pack has to end within its minutes."
    return UsageError(what, why=why, remedy="Allow more entries or minutes, or plan a part of the cells with --where.")


def _packs(group: _Group, parts: Sequence[Sequence[Task]]) -> list[Pack]:
    return [
        Pack(
            slug="",
            rule=group.rule,
            image=group.image,
            engine=group.engine,
            jobs=tuple(task.number for task in tasks),
            gpus=max(task.room.gpus for task in tasks),
            seconds=packed_seconds(tasks, group.total),
            limits=group.limits_of(tasks),
        )
        for tasks in parts
    ]


def _slugs(packs: Sequence[Pack]) -> list[str]:
    """A name for each pack, unique whatever the case: image, GPUs, and which of how many it is."""
    groups: dict[tuple[RunnerRule, str, EngineName | None], list[Pack]] = {}
    for pack in packs:
        groups.setdefault(pack.group, []).append(pack)
    taken: set[str] = set()
    slugs: list[str] = []
    for own in groups.values():
        stem = _stem(f"{own[0].image[:LONGEST_IMAGE].lower()}-g{max(pack.gpus for pack in own)}", taken)
        width = len(str(len(own)))
        slugs += [f"{stem}-{number:0{width}}of{len(own)}" for number in range(1, len(own) + 1)]
    return slugs


def _stem(wanted: str, taken: set[str]) -> str:
    """The name, or where another group has it, that name with a letter more."""
    stem, number = wanted, 1
    while stem in taken:
        number += 1
        stem = f"{wanted}-r{number}"
    taken.add(stem)
    return stem

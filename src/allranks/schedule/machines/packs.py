"""From jobs to packs, one for each machine of a CI: by runner rule and image, with loads as even as jobs allow."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from allranks.errors import UsageError
from allranks.matrix.model import EngineName, Job, Matrix, RunnerRule
from allranks.matrix.runners import minutes_of
from allranks.report.durations import Durations
from allranks.schedule.machines.groups import Group, groups_of
from allranks.schedule.machines.limits import PackLimits
from allranks.schedule.machines.wishes import Wishes
from allranks.schedule.packing.counts import Work, host_counts
from allranks.schedule.packing.division import divide
from allranks.schedule.packing.estimate import expected, packed_seconds
from allranks.schedule.packing.task import Task

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
class _Part:
    """What a machine gets of a group."""

    tasks: Sequence[Task]
    limits: PackLimits


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
    groups = groups_of(matrix, jobs, foreseen)
    parts = _parts(groups, wishes)
    packs = [_pack(group, part) for group, own in zip(groups, parts, strict=True) for part in own]
    named = tuple(replace(pack, slug=slug) for pack, slug in zip(packs, _slugs(packs), strict=True))
    return Division(packs=named, jobs=len(jobs), guessed=sum(not each.is_measured for each in foreseen))


def _parts(groups: Sequence[Group], wishes: Wishes) -> list[list[_Part]]:
    """For each group as many parts as wished, more where they would take too long, and never more than may be.

    Raises:
        UsageError: More are needed than may be.
    """
    works = [group.work for group in groups]
    known: dict[tuple[int, int], list[_Part]] = {}
    while True:
        if sum(work.least for work in works) > wishes.most:
            raise _too_many(works, wishes.most)
        counts = list(enumerate(host_counts(works, wishes.minutes * 60.0, wishes.most)))
        known |= {place: _divided(groups[place[0]], place[1]) for place in counts if place not in known}
        parts = [known[place] for place in counts]
        needed = [_needed(group, own) for group, own in zip(groups, parts, strict=True)]
        if all(more <= len(own) for more, own in zip(needed, parts, strict=True)):
            return parts
        works = [replace(work, least=max(work.least, more)) for work, more in zip(works, needed, strict=True)]


def _divided(group: Group, count: int) -> list[_Part]:
    return [_Part(tasks=tasks, limits=group.limits_of(tasks)) for tasks in divide(group.tasks, group.total, count)]


def _needed(group: Group, parts: Sequence[_Part]) -> int:
    """How many packs there have to be at least, as far as these tell: one, where all of them end in time."""
    latest, most = max(part.limits.job_minutes for part in parts), minutes_of(group.rule)
    return 1 if latest <= most else min(len(group.tasks), max(len(parts) + 1, ceil(len(parts) * latest / most)))


def _too_many(works: Sequence[Work], most: int) -> UsageError:
    what = f"{sum(work.least for work in works)} entries of the job matrix are needed, and there may be {most}."
    why = f"There are {len(works)} combinations of runner rule and image, and each pack has to end within its minutes."
    return UsageError(what, why=why, remedy="Allow more entries or minutes, or plan a part of the cells with --where.")


def _pack(group: Group, part: _Part) -> Pack:
    return Pack(
        slug="",
        rule=group.rule,
        image=group.image,
        engine=group.engine,
        jobs=tuple(task.number for task in part.tasks),
        gpus=max(task.room.gpus for task in part.tasks),
        seconds=packed_seconds(part.tasks, group.total),
        limits=part.limits,
    )


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

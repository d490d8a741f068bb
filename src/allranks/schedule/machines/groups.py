"""Jobs that may share a machine of a CI: of one runner rule and one image."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from allranks.errors import UsageError
from allranks.matrix.model import EngineName, Job, Matrix, RunnerRule
from allranks.matrix.runners import cores_of, minutes_of, runner_for
from allranks.schedule.machines.limits import PackLimits, allowed, limit_of, pack_limits
from allranks.schedule.packing.counts import Work
from allranks.schedule.packing.estimate import Expected, packed_seconds
from allranks.schedule.packing.task import Room, Task
from allranks.schedule.request import room_of


@dataclass(frozen=True, kw_only=True)
class Group:
    """Jobs that may share a machine.

    Attributes:
        rule: Which machines take them.
        image: Name of the image that they run in.
        engine: Where they run; None where nobody says.
        total: What such a machine has.
        tasks: The jobs, by their numbers among all that are planned, with what they are expected to take.
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
    def work(self) -> Work:
        """What there is to do."""
        return Work(
            seconds=packed_seconds(self.tasks, self.total),
            longest=max(task.seconds for task in self.tasks),
            tasks=len(self.tasks),
        )

    def limits_of(self, tasks: Sequence[Task]) -> PackLimits:
        """The time limits of a pack of these tasks."""
        set_aside = [replace(task, seconds=self.allowed[task.number]) for task in tasks]
        return pack_limits(set_aside, self.total, self.own_limit)


def groups_of(matrix: Matrix, jobs: Sequence[Job], foreseen: Sequence[Expected]) -> list[Group]:
    """Jobs by rule and image, in their order.

    Args:
        matrix: Says which machines there are.
        jobs: All that is planned.
        foreseen: What each of them is expected to take.

    Raises:
        UsageError: No machine takes a job, or it does not fit into the time that the CI gives it.
    """
    numbers: dict[tuple[RunnerRule, str], list[int]] = {}
    for number, job in enumerate(jobs):
        numbers.setdefault((runner_for(matrix, job.cell), job.image.name), []).append(number)
    groups, rooms = [], dict[tuple[int, int, int], Room]()
    for (rule, image), own in numbers.items():
        longest = max((jobs[number] for number in own), key=lambda job: limit_of(job, matrix.limits))
        group = Group(
            rule=rule,
            image=image,
            engine=rule.engine,
            total=Room(gpus=rule.gpus, cores=cores_of(rule)),
            tasks=tuple(Task(number, _room(matrix, jobs[number], rooms), foreseen[number].seconds) for number in own),
            allowed={number: allowed(jobs[number], foreseen[number], matrix.limits) for number in own},
            own_limit=limit_of(longest, matrix.limits),
        )
        _refuse_what_never_fits(group, longest)
        groups.append(group)
    return groups


def _room(matrix: Matrix, job: Job, known: dict[tuple[int, int, int], Room]) -> Room:
    """What a job takes of a machine, looked up where it is known; how much memory a machine has nobody says."""
    kind = job.cell.world_size, job.cell.gpu_count, job.suite.overlap
    if kind not in known:
        known[kind] = room_of(matrix, job, gpus=job.cell.gpu_count)._replace(memory=0)
    return known[kind]


def _refuse_what_never_fits(group: Group, longest: Job) -> None:
    """Refuse jobs that the CI would end before their own limit does, each of them alone on its machine.

    Raises:
        UsageError: There is one.
    """
    needs, most = group.limits_of(group.tasks[:1]).job_minutes, minutes_of(group.rule)
    if needs > most:
        what = f"The job {longest.id} does not fit into the {most} minutes that it gets on {group.rule.runs_on}."
        why = f"Its own limit is {group.own_limit:g} s, and with what is around it that makes {needs} minutes."
        raise UsageError(what, why=why, remedy="Lower limits.job, or send the cell to machines with more minutes.")

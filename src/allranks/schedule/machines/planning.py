"""Makes the plan of a CI's machines, and finds on one of them what it has to run."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from allranks.errors import UsageError
from allranks.matrix.expand import Expansion
from allranks.matrix.jobs import plan
from allranks.matrix.model import Job
from allranks.report.durations import Durations
from allranks.schedule.facts import facts_of
from allranks.schedule.folder import RUN_ID_VARIABLE
from allranks.schedule.machines.github import render_entries, render_notes
from allranks.schedule.machines.packs import divide_jobs
from allranks.schedule.machines.plan_file import (
    PlanFile,
    PlannedPack,
    pack_called,
    plan_document,
    read_plan,
    refuse_another_matrix,
    write_plan,
)
from allranks.schedule.machines.wishes import Wishes


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What the command line says about a plan of machines.

    Attributes:
        run_id: The run that all machines take part in.
        pytest_args: What each job gives to pytest.
        durations: What tests have taken.
        wishes: How many packs, and how large.
        plan_file: Where the plan is written; None for nowhere.
    """

    run_id: str
    pytest_args: tuple[str, ...]
    durations: Durations
    wishes: Wishes
    plan_file: Path | None


@dataclass(frozen=True, kw_only=True)
class OwnPart:
    """What one machine has to run.

    Attributes:
        plan: What it is a part of.
        pack: Which part.
        jobs: Its jobs, in the order of the plan.
    """

    plan: PlanFile
    pack: PlannedPack
    jobs: tuple[Job, ...]

    def refuse_others(self, run_id: str | None, pytest_args: Sequence[str]) -> None:
        """See that what this machine has been told beside the plan is what the plan says.

        Args:
            run_id: The run that it should take part in; empty or None where nobody says.
            pytest_args: What it should give to pytest; nothing where nobody says.

        Raises:
            UsageError: It is something else: its results would not be those that are planned.
        """
        if run_id and run_id != self.plan.run_id:
            msg = f"{RUN_ID_VARIABLE} is {run_id!r}, and {self.plan.path} plans the run {self.plan.run_id!r}."
            raise UsageError(msg, remedy="Leave it unset where a pack is run: the plan says which run it is of.")
        if pytest_args and tuple(pytest_args) != self.plan.pytest_args:
            planned = shlex.join(self.plan.pytest_args) or "none"
            msg = f"{self.plan.path} plans other arguments for pytest: {planned}."
            raise UsageError(msg, remedy="Give them to `allranks plan`, and none to the runs of its packs.")


def plan_machines(expansion: Expansion, jobs: Sequence[Job], options: PlanOptions) -> tuple[str, list[str]]:
    """The job matrix for GitHub Actions, and what is to be said of it, a line each; writes the plan file.

    Args:
        expansion: The matrix that the jobs come from.
        jobs: All that is to run, at least one.
        options: How to divide it.

    Raises:
        UsageError: The jobs cannot be divided so, or the file cannot be written.
    """
    division = divide_jobs(expansion.matrix, jobs, options.durations, options.wishes)
    document = plan_document(
        run_id=options.run_id,
        matrix=expansion.matrix,
        facts=facts_of(expansion),
        jobs=jobs,
        packs=division.packs,
        durations=options.durations,
        pytest_args=options.pytest_args,
    )
    entries = render_entries(document, division, jobs)
    if options.plan_file:
        write_plan(options.plan_file, document)
    return entries, render_notes(division)


def own_part(expansion: Expansion, plan_file: Path, pack_text: str) -> OwnPart:
    """What a pack is, on the machine that runs it.

    Args:
        expansion: This machine's matrix.
        plan_file: The plan that the pack is of.
        pack_text: The pack, as the job matrix names it.

    Raises:
        UsageError: There is no such pack, or this machine has another matrix.
    """
    found = read_plan(plan_file)
    pack = pack_called(found, pack_text)
    refuse_another_matrix(found, expansion.matrix)
    return OwnPart(plan=found, pack=pack, jobs=_jobs(expansion, pack))


def planned_jobs(expansion: Expansion, plan_file: Path) -> tuple[Job, ...]:
    """The jobs of all packs; arguments and errors as of :func:`own_part`."""
    found = read_plan(plan_file)
    refuse_another_matrix(found, expansion.matrix)
    return tuple(job for pack in found.packs.values() for job in _jobs(expansion, pack))


def _jobs(expansion: Expansion, pack: PlannedPack) -> tuple[Job, ...]:
    """The pack's jobs, each of them made by this machine's matrix.

    Raises:
        UsageError: It has no such job.
    """
    cells = [expansion.by_id[cell_id] for cell_id in pack.cells if cell_id in expansion.by_id]
    suites = tuple(dict.fromkeys(job_id.partition("/")[2] for job_id in pack.jobs))
    there = {job.id: job for job in plan(expansion.matrix, cells, suites)}
    if lost := [job_id for job_id in pack.jobs if job_id not in there]:
        msg = f"The pack {pack.slug} has the job {lost[0]}, and {expansion.matrix.path.name} has no such job here."
        raise UsageError(msg, remedy="Check out the same commit on all machines.")
    return tuple(there[job_id] for job_id in pack.jobs)

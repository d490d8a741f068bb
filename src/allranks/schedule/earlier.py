"""A run of before that is gone on with: what it had planned, and what of that is left."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from allranks.engine.ownership import is_dead
from allranks.errors import UsageError
from allranks.matrix.model import Job, Matrix
from allranks.report.folder import read_manifest
from allranks.report.verdict import Setting
from allranks.schedule.again import Again, Wanted, newest_attempt, to_run_again


@dataclass(frozen=True, kw_only=True)
class EarlierRun:
    """What is known of a run that has ended, however it did.

    Attributes:
        run_id: The run.
        folder: Its results.
        arguments: What pytest was given in each of its jobs, by cell and suite.
        setting: How its results are judged: it goes on as it began, whatever the matrix file says by now.
    """

    run_id: str
    folder: Path
    arguments: Mapping[tuple[str, str], tuple[str, ...]]
    setting: Setting

    @property
    def suites(self) -> tuple[str, ...]:
        """The suites, and the shards of suites, that it had planned."""
        return tuple(dict.fromkeys(suite for _, suite in self.arguments))

    def own(self, jobs: Sequence[Job]) -> list[Job]:
        """Those of some jobs that it had planned."""
        return [job for job in jobs if (job.cell.id, job.name) in self.arguments]

    def refuse_lost(self, jobs: Sequence[Job]) -> None:
        """See that all that it had planned is among these jobs.

        Raises:
            UsageError: The matrix has changed since, and some of it cannot be run any more.
        """
        there = {(job.cell.id, job.name) for job in jobs}
        lost = next((place for place in self.arguments if place not in there), None)
        if lost:
            msg = f"The run {self.run_id} had planned {'/'.join(lost)}, and the matrix has no such job any more."
            raise UsageError(msg, remedy="Name the cells that are to go on, or begin a new run.")

    def arguments_of(self, jobs: Sequence[Job], given: tuple[str, ...]) -> tuple[str, ...]:
        """What pytest was given in all of these jobs.

        Args:
            jobs: Some of its jobs.
            given: What the command line gives it; with another selection, what is left out now would count as done.

        Raises:
            UsageError: They were run with different arguments, or with others than are given now.
        """
        found = {self.arguments[job.cell.id, job.name] for job in jobs}
        if len(found) > 1:
            msg = f"The jobs of the run {self.run_id} had different arguments for pytest."
            raise UsageError(msg, remedy="Name the cells of one kind.")
        before = next(iter(found), ())
        if given and given != before:
            msg = f"The run {self.run_id} had other arguments for pytest: {shlex.join(before) or 'none'}."
            raise UsageError(msg, remedy="Leave them away to go on with it, or begin a new run.")
        return before

    def left(self, jobs: Sequence[Job], wanted: Wanted) -> dict[str, Again]:
        """What of its jobs has to run again, by their ids; nothing of those that are done."""
        left = {job.id: to_run_again(newest_attempt(self.folder, job), self.setting, wanted) for job in jobs}
        return {job_id: again for job_id, again in left.items() if again}


def setting_of(matrix: Matrix) -> Setting:
    """How the results of a run are judged while it goes on; environment skips are good, whatever they count as."""
    return Setting(skip=matrix.policy.skip or "skip", mixed_skip=matrix.policy.mixed_skip)


def earlier_run(results: Path, run_id: str | None) -> EarlierRun:
    """The run to go on with.

    Args:
        results: The folder of all runs.
        run_id: The run; None for the newest.

    Raises:
        UsageError: There is no such run, its plan cannot be read, or it has not ended.
    """
    named = results / (run_id or "latest")
    folder = named.resolve()
    manifest, problem = read_manifest(folder, folder)
    if problem:
        msg = f"{named / 'run.json'} cannot be read, so nobody knows what the run had planned."
        raise UsageError(msg, why=problem, remedy="Begin a new run.")
    if manifest is None:
        msg = f"There is no run to go on with: {named} has no run.json."
        raise UsageError(msg, remedy="Name the folder of all runs with --results, or begin a run.")
    found = EarlierRun(
        run_id=manifest.run_id,
        folder=folder,
        arguments={job.place: job.pytest_args for job in manifest.jobs},
        setting=Setting(skip=manifest.policy.skip or "skip", mixed_skip=manifest.policy.mixed_skip),
    )
    if found.folder != (results / found.run_id).resolve():
        msg = f"{named} holds the run {found.run_id}, and is not its own folder: new results would go elsewhere."
        raise UsageError(msg, remedy=f"Put it back to {results / found.run_id}.")
    if not is_dead(found.run_id):
        msg = f"The run {found.run_id} has not ended yet."
        raise UsageError(msg, remedy="Wait for it, or end it with Ctrl-C where it runs.")
    return found

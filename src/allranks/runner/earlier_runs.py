"""The inputs of a run from earlier runs: caches, durations, and unfinished jobs.

All shards of a suite in a cell make the same split only if all of them collect the same tests and use the same
durations. The first shards change both, so the run keeps copies in its own folder, also for sessions that join it. It
copies the durations once, so that a shard that runs again has the same tests. It copies the cache for each attempt, so
that ``--lf`` in a resumed run selects what has failed in it.
"""

import json
import os
import shlex
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from allranks.engines.archive import copy_files
from allranks.engines.base import FileCopy
from allranks.errors import UsageError
from allranks.matrix.model import Job, Matrix
from allranks.ownership import is_dead
from allranks.protocol.config import COVERAGE, EARLIER_COVERAGE, PYTEST_CACHE
from allranks.report.folder import read_manifest
from allranks.report.judge.rules import VerdictPolicy
from allranks.runner.durations import Durations, DurationsError, parse, read_durations, render
from allranks.runner.results_folder import RunFolder, as_results_error
from allranks.runner.retry_policy import Again, Wanted, newest_attempt, to_run_again
from allranks.user_cache import hold

_VALUES = "v"
"""The folder of pytest's cache that holds values; the rest explains the cache to people, or belongs to tests."""

_LAST_FAILED = Path("cache") / "lastfailed"
"""A JSON object whose keys are the tests, and what could not be collected, that failed (pytest's cacheprovider.py)."""


def carried_files(cache: Path, results: Path) -> Iterator[FileCopy]:
    """The cache of an earlier job, as files for the next one; nothing if there is none yet.

    The folder of all runs may be part of the repository, so the cache may not lead out of it.
    """
    if cache.is_dir() and next(cache.iterdir(), None):
        yield FileCopy(source=cache, target=Path(PYTEST_CACHE) / _VALUES, root=results.resolve())


def earlier_coverage(attempt: Path) -> Iterator[FileCopy]:
    """The coverage data of the attempt that a job continues: both are combined."""
    folder = attempt / COVERAGE
    if folder.is_dir() and not folder.is_symlink():
        yield FileCopy(source=folder, target=Path(EARLIER_COVERAGE), root=folder.resolve())


def keep_cache(results: Path, cache: Path) -> None:
    """Move a job's cache out of its results, for the next job of this cell and suite.

    Each file is replaced atomically, since another run may start at this moment.
    """
    _put(results / PYTEST_CACHE / _VALUES, cache)
    shutil.rmtree(results / PYTEST_CACHE, ignore_errors=True)


def keep_cache_of_shard(results: Path, cache: Path, began_with: Path, own: Collection[str]) -> None:
    """Move a shard's cache out of its results, and merge what concerns its own tests into that of the whole suite.

    All shards of the run began with the cache `began_with`.
    """
    cache.parent.mkdir(parents=True, exist_ok=True)
    with hold(cache.parent / f".{cache.name}.lock"):
        draft = cache.parent / f".{cache.name}.shard"
        shutil.rmtree(draft, ignore_errors=True)
        keep_cache(results, draft)
        if (draft / _LAST_FAILED).exists():
            now, before, after = (_failed(folder / _LAST_FAILED) for folder in (cache, began_with, draft))
            failed = json.dumps(_merged(now, before, after, own), indent=2)
            (draft / _LAST_FAILED).write_text(failed, encoding="utf-8")
        _put(draft, cache)
        shutil.rmtree(draft, ignore_errors=True)


def _put(values: Path, cache: Path) -> None:
    for path in sorted(values.rglob("*")):
        if path.is_file() and not path.is_symlink():
            target = cache / path.relative_to(values)
            target.parent.mkdir(parents=True, exist_ok=True)
            draft = target.with_name(f".{target.name}.{os.getpid()}")
            shutil.copyfile(path, draft)
            draft.replace(target)


def _merged(
    now: dict[str, object], before: dict[str, object], after: dict[str, object], own: Collection[str]
) -> dict[str, object]:
    """The failures of the whole suite after one more shard.

    When a module can be collected again, pytest caches its tests as failed; only their own shards may do so.
    """
    mended = before.keys() - after.keys()
    broken = {name for name in after.keys() - before.keys() if name in own or "::" not in name}
    return {**{name: now[name] for name in now if name not in mended}, **{name: after[name] for name in broken}}


def _failed(path: Path) -> dict[str, object]:
    """The failures in a cache; empty if the file is missing, or is one that pytest would not understand either."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


DURATIONS = "durations.json"


def take_snapshot(
    folder: RunFolder,
    jobs: Iterable[Job],
    durations: Path,
    say: Callable[[str], None],
    *,
    known: Durations | None = None,
) -> RunFolder:
    """Keep a copy of the durations for the shards among some jobs; a run that is joined keeps the copy that it has.

    Without shards nothing is kept, since durations then only help to pack suites. `known` replaces those of the file:
    they are the same on every machine of a plan.
    """
    if not any(job.shard for job in jobs):
        return replace(folder, durations=read_durations(durations, _to_nobody))
    with as_results_error(folder.path), hold(folder.lock):
        return replace(folder, durations=_kept(folder.path / DURATIONS, durations, say, known))


def _to_nobody(_line: str) -> None:
    """Keep quiet about a file that nothing depends on."""


def _kept(kept: Path, durations: Path, say: Callable[[str], None], known: Durations | None) -> Durations:
    """The run's own copy of the durations, made where there is none yet."""
    if not kept.exists():
        draft = kept.with_name(f".{kept.name}")
        draft.write_text(render(read_durations(durations, say) if known is None else known), encoding="utf-8")
        draft.replace(kept)
    try:
        return parse(kept.read_text(encoding="utf-8"))
    except DurationsError as error:
        msg = f"{kept} {error}"
        raise ValueError(msg) from error


def cache_to_start_with(folder: RunFolder, job: Job, attempt: int) -> Path:
    """The cache that an attempt starts with: the same for all shards, regardless of what the first have changed.

    Raises:
        EngineError: The cache leads out of the folder of all runs.
    """
    cache, copy = folder.cache_of(job), folder.cache_for(job, attempt)
    with as_results_error(folder.path):
        if copy != cache:
            with hold(folder.lock):
                _copy(FileCopy(source=cache, target=Path(), root=folder.path.parent.resolve()), copy)
    return copy


def _copy(cache: FileCopy, copy: Path) -> None:
    """Copy a cache as it is now, an empty folder if there is none; an existing copy stays."""
    if copy.exists():
        return
    draft = copy.with_name(f".{copy.name}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    copy_files(cache, draft)
    draft.replace(copy)


@dataclass(frozen=True, kw_only=True)
class EarlierRun:
    """A run that has ended, well or not."""

    run_id: str
    folder: Path
    arguments: Mapping[tuple[str, str], tuple[str, ...]]  # the pytest arguments of each of its jobs, by cell and suite
    setting: VerdictPolicy  # how its results are judged: as when it began, even if the matrix file has changed

    @property
    def suites(self) -> tuple[str, ...]:
        """The suites, and the shards of suites, that it had planned."""
        return tuple(dict.fromkeys(suite for _, suite in self.arguments))

    def own(self, jobs: Sequence[Job]) -> list[Job]:
        """Those of the jobs that it had planned."""
        return [job for job in jobs if (job.cell.id, job.name) in self.arguments]

    def refuse_lost(self, jobs: Sequence[Job]) -> None:
        """Check that these jobs include all that it had planned.

        Raises:
            UsageError: The matrix has changed since, and some of it cannot be run any more.
        """
        there = {(job.cell.id, job.name) for job in jobs}
        lost = next((place for place in self.arguments if place not in there), None)
        if lost:
            msg = f"The run {self.run_id} had planned {'/'.join(lost)}, which the matrix no longer has."
            raise UsageError(msg, remedy="Name the cells to resume, or start a new run.")

    def arguments_of(self, jobs: Sequence[Job], given: tuple[str, ...]) -> tuple[str, ...]:
        """The pytest arguments that all of these jobs had.

        Raises:
            UsageError: They had different ones, or others than are given now, by which tests that are left out would
                count as done.
        """
        found = {self.arguments[job.cell.id, job.name] for job in jobs}
        if len(found) > 1:
            msg = f"The jobs of the run {self.run_id} had different pytest arguments."
            raise UsageError(msg, remedy="Name cells that had the same arguments.")
        before = next(iter(found), ())
        if given and given != before:
            msg = f"The run {self.run_id} had other pytest arguments: {shlex.join(before) or 'none'}."
            raise UsageError(msg, remedy="Drop yours to resume it, or start a new run.")
        return before

    def left(self, jobs: Sequence[Job], wanted: Wanted) -> dict[str, Again]:
        """The part of each job to run again, by id; finished jobs are left out."""
        left = {job.id: to_run_again(newest_attempt(self.folder, job), self.setting, wanted) for job in jobs}
        return {job_id: again for job_id, again in left.items() if again}


def setting_of(matrix: Matrix) -> VerdictPolicy:
    """How the results of a run are judged while it runs; environment skips are good, however they count."""
    return VerdictPolicy(skip=matrix.policy.skip or "skip", mixed_skip=matrix.policy.mixed_skip)


def earlier_run(results: Path, run_id: str | None) -> EarlierRun:
    """The run to resume, by its id; without one, the newest.

    Raises:
        UsageError: There is no such run, its plan cannot be read, or it has not ended.
    """
    named = results / (run_id or "latest")
    folder = named.resolve()
    manifest, problem, _ = read_manifest(folder, folder)
    if problem:
        msg = f"{named / 'run.json'} cannot be read, so the plan of the run is unknown."
        raise UsageError(msg, why=problem, remedy="Start a new run.")
    if manifest is None:
        msg = f"There is no run to resume: {named} has no run.json."
        raise UsageError(msg, remedy="Name the folder of all runs with --results, or start a run.")
    found = EarlierRun(
        run_id=manifest.run_id,
        folder=folder,
        arguments={job.key: job.pytest_args for job in manifest.jobs},
        setting=VerdictPolicy(skip=manifest.policy.skip or "skip", mixed_skip=manifest.policy.mixed_skip),
    )
    if found.folder != (results / found.run_id).resolve():
        msg = f"{named} holds the run {found.run_id} under another name: new results would go elsewhere."
        raise UsageError(msg, remedy=f"Move it back to {results / found.run_id}.")
    if not is_dead(found.run_id):
        msg = f"The run {found.run_id} has not ended yet."
        raise UsageError(msg, remedy="Wait for it, or end it with Ctrl-C where it runs.")
    return found

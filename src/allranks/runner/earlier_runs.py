"""What a run takes from earlier runs: pytest's cache, test durations, and unfinished jobs.

All shards of a suite in a cell split it the same way only if they collect the same tests and use the same durations.
The cache (with ``--lf``) and the durations change when the first shards finish, so the run keeps copies in its own
folder, also for sessions that join it. The durations are copied once, so that a shard that runs again has the same
tests. The cache is copied for each attempt, so that ``--lf`` in a resumed run selects what failed in that run.
"""

import json
import os
import shlex
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
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
from allranks.runner.retry_policy import JobSelection, RerunScope, newest_attempt, select_rerun
from allranks.user_cache import hold, write_atomically

_VALUES = "v"
"""The folder of pytest's cache that holds values; the rest is documentation or belongs to tests."""

_LAST_FAILED = Path("cache") / "lastfailed"
"""A JSON object whose keys are the node ids of failed tests and collectors (pytest's cacheprovider.py)."""


def cache_files(cache: Path, results: Path) -> Iterator[FileCopy]:
    """The cache of an earlier job, as files to copy into the next job.

    Symlinks may not lead out of the results folder, which may be part of the repository.
    """
    if cache.is_dir() and next(cache.iterdir(), None):
        yield FileCopy(source=cache, target=Path(PYTEST_CACHE) / _VALUES, root=results.resolve())


def earlier_coverage(attempt: Path) -> Iterator[FileCopy]:
    """The coverage data of an earlier attempt, as files to copy: the job combines them with its own data."""
    folder = attempt / COVERAGE
    if folder.is_dir() and not folder.is_symlink():
        yield FileCopy(source=folder, target=Path(EARLIER_COVERAGE), root=folder.resolve())


def keep_cache(results: Path, cache: Path) -> None:
    """Move a job's cache out of its results, for the next job of this cell and suite.

    Each file is replaced atomically, since another run may be reading it.
    """
    _copy_values(results / PYTEST_CACHE / _VALUES, cache)
    shutil.rmtree(results / PYTEST_CACHE, ignore_errors=True)


def keep_cache_of_shard(results: Path, cache: Path, initial: Path, own: Collection[str]) -> None:
    """Move a shard's cache out of its results, and merge the entries of its own tests into the suite's cache.

    Args:
        results: The shard's results.
        cache: The cache of the whole suite.
        initial: The cache that all shards of the run started with.
        own: The node ids of the shard's tests.
    """
    cache.parent.mkdir(parents=True, exist_ok=True)
    with hold(cache.parent / f".{cache.name}.lock"):
        draft = cache.parent / f".{cache.name}.shard"
        shutil.rmtree(draft, ignore_errors=True)
        keep_cache(results, draft)
        if (draft / _LAST_FAILED).exists():
            now, before, after = (_last_failed(folder / _LAST_FAILED) for folder in (cache, initial, draft))
            failed = json.dumps(_merge_failed(now, before, after, own), indent=2)
            (draft / _LAST_FAILED).write_text(failed, encoding="utf-8")
        _copy_values(draft, cache)
        shutil.rmtree(draft, ignore_errors=True)


def _copy_values(values: Path, cache: Path) -> None:
    for path in sorted(values.rglob("*")):
        if path.is_file() and not path.is_symlink():
            target = cache / path.relative_to(values)
            target.parent.mkdir(parents=True, exist_ok=True)
            draft = target.with_name(f".{target.name}.{os.getpid()}")
            shutil.copyfile(path, draft)
            draft.replace(target)


def _merge_failed(
    now: dict[str, object], before: dict[str, object], after: dict[str, object], own: Collection[str]
) -> dict[str, object]:
    """The failures of the whole suite after one more shard.

    When a module that failed to collect is collected successfully, pytest caches all its tests as failed; only the
    shards that run these tests may add them.
    """
    fixed = before.keys() - after.keys()
    broken = {name for name in after.keys() - before.keys() if name in own or "::" not in name}
    return {**{name: now[name] for name in now if name not in fixed}, **{name: after[name] for name in broken}}


def _last_failed(path: Path) -> dict[str, object]:
    """The failures in a cache; empty if the file is missing or invalid."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


DURATIONS = "durations.json"


def with_durations(
    folder: RunFolder,
    jobs: Iterable[Job],
    durations: Path,
    say: Callable[[str], None],
    *,
    known: Durations | None = None,
) -> RunFolder:
    """The run's folder with the durations of tests: those of the file or, if a job is a shard, the run's own copy.

    A session that joins a run uses the copy of the first session.

    Args:
        folder: The run's folder.
        jobs: The jobs of this session.
        durations: The file of durations.
        say: Prints a warning about an unusable file.
        known: The durations in a plan, used instead of the file, so that all machines use the same ones.
    """
    if not any(job.shard for job in jobs):
        return replace(folder, durations=read_durations(durations, lambda _: None))  # only used to order the jobs
    with as_results_error(folder.path), hold(folder.lock):
        return replace(folder, durations=_snapshot(folder.path / DURATIONS, durations, say, known))


def _snapshot(copy: Path, durations: Path, say: Callable[[str], None], known: Durations | None) -> Durations:
    """The run's own copy of the durations, created if missing."""
    if not copy.exists():
        write_atomically(copy, render(read_durations(durations, say) if known is None else known))
    try:
        return parse(copy.read_text(encoding="utf-8"))
    except DurationsError as error:
        msg = f"{copy} {error}"
        raise ValueError(msg) from error


def initial_cache(folder: RunFolder, job: Job, attempt: int) -> Path:
    """The cache that an attempt starts with: the same for all shards, even if some of them have finished.

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
    """Copy a cache, or create an empty folder if there is none; an existing copy is kept."""
    if copy.exists():
        return
    draft = copy.with_name(f".{copy.name}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    copy_files(cache, draft)
    draft.replace(copy)


@dataclass(frozen=True, kw_only=True)
class EarlierRun:
    """A run that has ended and may be resumed."""

    run_id: str
    folder: Path
    arguments: Mapping[tuple[str, str], tuple[str, ...]]  # the pytest arguments of each planned job, by cell and suite
    policy: VerdictPolicy  # from its manifest: the matrix file may have changed since

    @property
    def suites(self) -> tuple[str, ...]:
        """The planned suites, and shards of suites."""
        return tuple(dict.fromkeys(suite for _, suite in self.arguments))

    def planned(self, jobs: Sequence[Job]) -> list[Job]:
        """The jobs that the run planned."""
        return [job for job in jobs if (job.cell.id, job.name) in self.arguments]

    def check_complete(self, jobs: Sequence[Job]) -> None:
        """Check that these jobs include all that the run planned.

        Raises:
            UsageError: The matrix has changed, and a planned job no longer exists.
        """
        available = {(job.cell.id, job.name) for job in jobs}
        missing = next((key for key in self.arguments if key not in available), None)
        if missing:
            msg = f"The run {self.run_id} planned {'/'.join(missing)}, which is no longer in the matrix."
            raise UsageError(msg, remedy="Name the cells to resume, or start a new run.")

    def arguments_of(self, jobs: Sequence[Job], given: tuple[str, ...]) -> tuple[str, ...]:
        """The pytest arguments that all of these jobs had.

        Raises:
            UsageError: Their arguments differ, or `given` differs: tests that it deselects would count as finished.
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

    def remaining(self, jobs: Sequence[Job], scope: RerunScope) -> dict[str, JobSelection]:
        """What each unfinished job has to run again, by job id."""
        selections = {job.id: select_rerun(newest_attempt(self.folder, job), self.policy, scope) for job in jobs}
        return {job_id: selection for job_id, selection in selections.items() if selection}


def verdict_policy_of(matrix: Matrix) -> VerdictPolicy:
    """The rules for verdicts during a run: a skip because of the environment is not a failure."""
    return VerdictPolicy(skip=matrix.policy.skip or "skip", mixed_skip=matrix.policy.mixed_skip)


def wider_run(results: Path, run: EarlierRun) -> EarlierRun | None:
    """The newest run before one with pytest arguments that had none, so that its failures may be more."""
    if not any(run.arguments.values()):
        return None
    for name in sorted((path.name for path in results.iterdir() if path.name < run.run_id), reverse=True):
        with suppress(UsageError):
            found = earlier_run(results, name)
            if not any(found.arguments.values()):
                return found
    return None


def earlier_run(results: Path, run_id: str | None) -> EarlierRun:
    """The run to resume: the one with this id, or for None the newest one.

    Raises:
        UsageError: There is no such run, its plan cannot be read, or it has not ended.
    """
    named = results / (run_id or "latest")
    folder = named.resolve()
    manifest, problem, _ = read_manifest(folder, folder)
    if problem:
        msg = f"{named / 'run.json'}, the plan of the run, cannot be read."
        raise UsageError(msg, why=problem, remedy="Start a new run.")
    if manifest is None:
        msg = f"There is no run to resume: {named} has no run.json."
        raise UsageError(msg, remedy="Name the folder of all runs with --results, or start a run.")
    found = EarlierRun(
        run_id=manifest.run_id,
        folder=folder,
        arguments={job.key: job.pytest_args for job in manifest.jobs},
        policy=VerdictPolicy(skip=manifest.policy.skip or "skip", mixed_skip=manifest.policy.mixed_skip),
    )
    if found.folder != (results / found.run_id).resolve():
        msg = f"{named} is a renamed folder of the run {found.run_id}: new results would go into another folder."
        raise UsageError(msg, remedy=f"Move it back to {results / found.run_id}.")
    if not is_dead(found.run_id):
        msg = f"The run {found.run_id} has not ended yet."
        raise UsageError(msg, remedy="Wait for it, or interrupt it with Ctrl-C.")
    return found

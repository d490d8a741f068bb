"""The results folder: the manifest of a run, the owners of its jobs, and the folders of its attempts.

If the folder cannot be used, all functions raise ResultsError.
"""

import json
import os
import secrets
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import allranks
from allranks.errors import ResultsError, UsageError
from allranks.matrix.expand import Expansion
from allranks.matrix.model import Job
from allranks.ownership import OwnedRun
from allranks.report.judge.baseline import read_baseline
from allranks.report.run_files import DroppedCells, JobRecord, JudgingPolicy, Manifest, PlannedJob, as_json
from allranks.report.untrusted import parsed
from allranks.user_cache import hold, write_atomically

if TYPE_CHECKING:
    from allranks.runner.durations import Durations


def facts_of(expansion: Expansion) -> Manifest:
    """A manifest without jobs: the command, the policy and the dropped cells."""
    matrix = expansion.matrix
    policy = matrix.policy
    return Manifest(
        run_id="",
        commit=_commit(matrix.root),
        command=_own_command(sys.argv[1:]),
        matrix=matrix.path.name,
        folder=_in_repository(matrix.root),
        policy=JudgingPolicy(
            skip=policy.skip,
            mixed_skip=policy.mixed_skip,
            baseline=read_baseline(matrix.root / policy.baseline) if policy.baseline else {},
        ),
        dropped=tuple(
            DroppedCells(rule=rule.when.source, reason=rule.reason, count=len(cells))
            for rule, cells in expansion.dropped.items()
        ),
    )


def _own_command(words: Sequence[str]) -> str:
    """The command up to ``--``: reports are published, and pytest's arguments may contain secrets."""
    end = words.index("--") if "--" in words else len(words)
    return shlex.join(["allranks", *words[:end]]) + (" -- …" if words[end + 1 :] else "")


def _commit(folder: Path) -> str:
    """The commit of the folder's repository, with ``-dirty`` for changed files; empty without one."""
    command = ("git", "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=_GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout.strip()


_GIT_SECONDS = 10


def _in_repository(folder: Path, environ: Mapping[str, str] = os.environ) -> str:
    """The folder's path relative to the nearest parent with ``.git``, else to ``GITHUB_WORKSPACE``."""
    folder = folder.resolve()
    workspace = [Path(path).resolve() for path in (environ.get("GITHUB_WORKSPACE"),) if path]
    roots = [parent for parent in (folder, *folder.parents) if (parent / ".git").exists()]
    root = next((root for root in (*roots, *workspace) if folder.is_relative_to(root)), folder)
    return "" if root == folder else folder.relative_to(root).as_posix()


def new_manifest(run_id: str, facts: Manifest, seed: int | None) -> Manifest:
    """The manifest of a new run, without jobs; a random seed if none is given."""
    return replace(
        facts,
        run_id=run_id,
        allranks=allranks.__version__,
        python=sys.version.split()[0],
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        host=socket.gethostname(),
        seed=secrets.randbits(31) if seed is None else seed,
    )


def with_planned_jobs(manifest: Manifest, jobs: Iterable[Job], pytest_args: Sequence[str]) -> Manifest:
    """The manifest with these jobs added; entries of jobs that it already has do not change."""
    known = {job.id for job in manifest.jobs}
    cells, planned = dict(manifest.cells), list(manifest.jobs)
    for job in jobs:
        cells.setdefault(job.cell.id, job.cell.visible_axes())
        if job.id not in known:
            entry = PlannedJob(id=job.id, cell=job.cell.id, suite=job.name, image=job.image.name)
            planned.append(replace(entry, pytest_args=tuple(pytest_args)))
    return replace(manifest, cells=cells, jobs=tuple(planned))


_LOCK = ".manifest.lock"

_OWNERS = ".owners.json"
"""The invocation that last ran each job of a run, by the job's id."""

RUN_ID_VARIABLE = "ALLRANKS_RUN_ID"
"""The environment variable with the id of a run that several processes share, such as the sessions of a nox command."""

INVOCATION_VARIABLE = "ALLRANKS_INVOCATION_ID"
"""The environment variable with an id of the nox command whose sessions share a run."""


def invocation_id() -> str:
    """The id of the nox command that started this process, or a new one for this process alone."""
    return os.environ.get(INVOCATION_VARIABLE) or new_invocation_id()


def new_invocation_id() -> str:
    """A unique id."""
    return secrets.token_hex(8)


def new_run_id() -> str:
    """A run id: the time, and a random part that distinguishes runs of the same second."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """The folder of one run."""

    path: Path  # ``results/<run id>``
    run_id: str
    seed: int
    durations: "Durations" = field(default_factory=dict)  # of tests when the run began, to order jobs and split suites

    def cache_of(self, job: Job) -> Path:
        """The folder of pytest's cache of a cell and suite, shared by all shards and runs."""
        return self.path.parent / ".cache" / job.cell.id / job.suite.name

    def cache_for(self, job: Job, attempt: int) -> Path:
        """The cache that an attempt starts with: for shards, a copy that is the same for all of them."""
        if job.shard is None:
            return self.cache_of(job)
        return self.path / ".caches" / job.cell.id / job.suite.name / f"attempt-{attempt}"

    @property
    def lock(self) -> Path:
        """The lock of the files that the sessions of a run share."""
        return self.path / _LOCK

    def seconds_of(self, job: Job) -> Mapping[str, float]:
        """Durations of the suite's tests with the job's backend, by node id; empty if the job is not a shard."""
        return self.durations.get(job.suite.name, {}).get(job.cell.backend, {}) if job.shard else {}

    def unended_attempt(self, job: Job) -> tuple[int, Path] | None:
        """The newest attempt at a job if its orchestrator was killed: it has a folder, but no record of its end."""
        number = _newest_number(self._suite(job))
        folder = self._suite(job) / f"attempt-{number}"
        has_ended = (folder / "job.json").exists() or not folder.is_dir()
        return None if has_ended else (number, folder)

    def _suite(self, job: Job) -> Path:
        return self.path / "cells" / job.cell.id / job.name

    def new_attempt(self, job: Job) -> tuple[int, Path]:
        """Create the folder of the next attempt at a job; return its number and path."""
        return new_attempt_in(self._suite(job))


def new_attempt_in(suite: Path) -> tuple[int, Path]:
    """Create the next attempt's folder in the folder of a job; return its number and path."""
    with as_results_error(suite):
        suite.mkdir(parents=True, exist_ok=True)
        number = _newest_number(suite) + 1
        while True:
            folder = suite / f"attempt-{number}"
            try:
                folder.mkdir()
            except FileExistsError:
                number += 1
                continue
            return number, folder


def has_begun(suite: Path) -> bool:
    """Whether the folder of a job has an attempt that was not rejected before its start."""
    return not all(map(_was_rejected, suite.glob("attempt-*")))


def _was_rejected(attempt: Path) -> bool:
    """Whether an attempt was rejected before it had an engine."""
    try:
        return not parsed(JobRecord, json.loads((attempt / "job.json").read_bytes())).engine
    except (OSError, ValueError, RecursionError):
        return False


def _newest_number(suite: Path) -> int:
    """The number of the newest attempt at a job; 0 if there is none."""
    try:
        # Not Path.iterdir: an interrupt would leave its descriptor open.
        numbers = [name.removeprefix("attempt-") for name in os.listdir(suite)]  # noqa: PTH208
    except FileNotFoundError:
        return 0
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def open_run(  # noqa: PLR0913, PLR0917 - all of them go into one file
    results: Path,
    run_id: str,
    jobs: Iterable[Job],
    facts: Manifest,
    seed: int | None,
    pytest_args: Sequence[str] = (),
) -> RunFolder:
    """Create or join a run's folder, and add jobs to its manifest before the first of them runs.

    `seed` is the seed of a new run; None for a random one. An existing run keeps its seed.
    """

    def add_jobs(manifest: Manifest | None) -> Manifest:
        return with_planned_jobs(manifest or new_manifest(run_id, facts, seed), jobs, pytest_args)

    manifest = change_manifest(results, run_id, add_jobs)
    return RunFolder(path=results / run_id, run_id=run_id, seed=manifest.seed)


def change_manifest(results: Path, run_id: str, change: Callable[[Manifest | None], Manifest]) -> Manifest:
    """Replace the manifest of a run with `change(manifest)`, and point ``latest`` to the run."""
    path = results / run_id
    with as_results_error(results):
        path.mkdir(parents=True, exist_ok=True)
        with hold(path / _LOCK):
            manifest = change(_read(path / "run.json"))
            write_json(path / "run.json", as_json(manifest))
        _point_latest(results, run_id)
    return manifest


def claim_jobs(  # noqa: PLR0913 - each is a different concept
    results: Path, owned: OwnedRun, jobs: Sequence[Job], say: Callable[[str], None], *, invocation: str, resuming: bool
) -> None:
    """Own all of these jobs or none, before any of them starts, until `owned` ends.

    A job belongs to one invocation. If a second one ran it too, its attempts would count as retries of the first, and
    could turn failures into passes. The sessions of one nox command, such as those of a cell and of a cell prefix, are
    one invocation and run a job one after the other. Any invocation may claim the jobs of a run that is being resumed.

    Raises:
        JobTakenError: One of them belongs to another invocation.
    """
    path = results / owned.run_id
    with as_results_error(results):
        path.mkdir(parents=True, exist_ok=True)
        while (busy := _claim_or_find_busy(path, owned, jobs, invocation, resuming=resuming)) is not None:
            say(f"waiting for {busy}: another session of this nox command is running it")
            owned.wait_for(busy)


def _claim_or_find_busy(
    path: Path, owned: OwnedRun, jobs: Sequence[Job], invocation: str, *, resuming: bool
) -> str | None:
    """Own all jobs and return None; or own none, and return one that a session of the same invocation is running."""
    with ExitStack() as undo, hold(path / _LOCK):
        owners = _owners(path / _OWNERS)
        for job in jobs:
            is_own = owners.get(job.id) == invocation
            if not owned.try_own(job.id):
                if is_own:
                    return job.id
                raise _taken_error(job.id, owned.run_id, "is being run by another process")
            undo.callback(owned.disown, job.id)
            if not (is_own or resuming) and has_begun(path / "cells" / job.cell.id / job.name):
                raise _taken_error(job.id, owned.run_id, "has already been run")
        write_json(path / _OWNERS, {**owners, **{job.id: invocation for job in jobs}})
        undo.pop_all()
    return None


def _owners(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    owners = json.loads(path.read_text(encoding="utf-8"))
    return {str(job_id): str(invocation) for job_id, invocation in owners.items()}


class JobTakenError(UsageError):
    """A job belongs to another process, whose results remain valid."""


def _taken_error(job_id: str, run_id: str, how: str) -> JobTakenError:
    return JobTakenError(
        f"{job_id} of the run {run_id} {how}.",
        why="Only one process may run a job: attempts by two would look like retries.",
        remedy=f"Resume that run when it has ended (--resume, --lf), or start another one: unset or change "
        f"{RUN_ID_VARIABLE}.",
    )


def _read(path: Path) -> Manifest | None:
    if not path.exists():
        return None
    return parsed(Manifest, json.loads(path.read_text(encoding="utf-8")))


def write_json(path: Path, value: object) -> None:
    """Write a JSON file atomically."""
    write_atomically(path, json.dumps(value, indent=1) + "\n")


def _point_latest(results: Path, run_id: str) -> None:
    draft = results / f".latest-{os.getpid()}"
    draft.unlink(missing_ok=True)
    draft.symlink_to(run_id, target_is_directory=True)
    draft.replace(results / "latest")


@contextmanager
def as_results_error(folder: Path) -> Iterator[None]:
    """Turn file errors into :class:`ResultsError`."""
    try:
        yield
    except (OSError, ValueError) as error:
        msg = f"The results folder {folder} cannot be used."
        remedy = "Make it writable, or choose another one with --results."
        raise ResultsError(msg, why=str(error), remedy=remedy) from error

"""The results folder: the manifest of a run, its metadata, and the record of each attempt.

What writes there raises ResultsError where it cannot, in this module and in those that use it.
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
from allranks.user_cache import hold

if TYPE_CHECKING:
    from allranks.runner.durations import Durations


def facts_of(expansion: Expansion) -> Manifest:
    """The facts in a manifest beside its jobs: command, policy, dropped cells."""
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
    """The command up to ``--``: what follows it may be anything, also a secret, and reports are published."""
    place = words.index("--") if "--" in words else len(words)
    return shlex.join(["allranks", *words[:place]]) + (" -- …" if words[place + 1 :] else "")


def _commit(folder: Path) -> str:
    """The commit of the repository that a folder is in, with ``-dirty`` for changed files; empty if git has none."""
    command = ("git", "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=_GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout.strip()


_GIT_SECONDS = 10


def _in_repository(folder: Path, environ: Mapping[str, str] = os.environ) -> str:
    """A folder's path in its repository: below the nearest ``.git``, else below the workspace of a step on GitHub."""
    folder = folder.resolve()
    workspace = [Path(path).resolve() for path in (environ.get("GITHUB_WORKSPACE"),) if path]
    roots = [each for each in (folder, *folder.parents) if (each / ".git").exists()]
    root = next((each for each in (*roots, *workspace) if folder.is_relative_to(each)), folder)
    return "" if root == folder else folder.relative_to(root).as_posix()


def fresh_manifest(run_id: str, facts: Manifest, seed: int | None) -> Manifest:
    """A manifest without jobs, of these facts; without a seed, with a random one."""
    return replace(
        facts,
        run_id=run_id,
        allranks=allranks.__version__,
        python=sys.version.split()[0],
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        host=socket.gethostname(),
        seed=secrets.randbits(31) if seed is None else seed,
    )


def announced(manifest: Manifest, jobs: Iterable[Job], pytest_args: Sequence[str]) -> Manifest:
    """The manifest with these jobs added; jobs that it has stay as they are."""
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
"""Which party last ran each job of a run, by the job's id."""

RUN_ID_VARIABLE = "ALLRANKS_RUN_ID"
"""Names the run that several processes share, such as the sessions of one nox process."""


PARTY_VARIABLE = "ALLRANKS_PARTY"
"""Names the nox process whose sessions share a run: together they are one party."""


def own_party() -> str:
    """The party of this process: the nox process that started it, else itself alone."""
    return os.environ.get(PARTY_VARIABLE) or new_party()


def new_party() -> str:
    """A name that no other party has."""
    return secrets.token_hex(8)


def new_run_id() -> str:
    """A name for a run: its start, and a random part that sets it apart from runs of the same second."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """The folder of one run."""

    path: Path  # ``results/<run id>``
    run_id: str
    seed: int
    durations: "Durations" = field(default_factory=dict)  # durations of tests when the run began, for its shards

    def cache_of(self, job: Job) -> Path:
        """The folder beside the runs with pytest's cache of a cell and suite, all shards included, for the next run."""
        return self.path.parent / ".cache" / job.cell.id / job.suite.name

    def cache_for(self, job: Job, attempt: int) -> Path:
        """The cache that an attempt starts with: for shards, a copy that all of them start with."""
        if job.shard is None:
            return self.cache_of(job)
        return self.path / ".caches" / job.cell.id / job.suite.name / f"attempt-{attempt}"

    @property
    def lock(self) -> Path:
        """Held to write the files that the sessions of a run share."""
        return self.path / _LOCK

    def seconds_of(self, job: Job) -> Mapping[str, float]:
        """Durations of the tests of a shard's suite under its backend, by node id; empty for a whole suite."""
        return self.durations.get(job.suite.name, {}).get(job.cell.backend, {}) if job.shard else {}

    def unended_attempt(self, job: Job) -> tuple[int, Path] | None:
        """The newest attempt at a job, if it has records and no end: its orchestrator was killed."""
        number = _newest_number(self._suite(job))
        folder = self._suite(job) / f"attempt-{number}"
        has_ended = (folder / "job.json").exists() or not folder.is_dir()
        return None if has_ended else (number, folder)

    def _suite(self, job: Job) -> Path:
        return self.path / "cells" / job.cell.id / job.name

    def new_attempt(self, job: Job) -> tuple[int, Path]:
        """The number and the folder of a new attempt at a job; earlier ones stay as they are."""
        return new_attempt_in(self._suite(job))


def new_attempt_in(suite: Path) -> tuple[int, Path]:
    """The number and the folder of a new attempt at a job, given the folder of all of them."""
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
    """Whether any attempt at a job has begun, given the folder of all of them: a refused one never had an engine."""
    return not all(map(_is_refused, suite.glob("attempt-*")))


def _is_refused(attempt: Path) -> bool:
    try:
        return not parsed(JobRecord, json.loads((attempt / "job.json").read_bytes())).engine
    except (OSError, ValueError, RecursionError):
        return False


def _newest_number(suite: Path) -> int:
    """The number of the newest attempt at a job; 0 if there is none."""
    try:
        # An interrupt in the middle of a listing by pathlib would leave its descriptor open.
        numbers = [name.removeprefix("attempt-") for name in os.listdir(suite)]  # noqa: PTH208
    except FileNotFoundError:
        return 0
    return max((int(each) for each in numbers if each.isdecimal()), default=0)


def open_run(  # noqa: PLR0913, PLR0917 - all of them go into one file
    results: Path,
    run_id: str,
    jobs: Iterable[Job],
    facts: Manifest,
    seed: int | None,
    pytest_args: Sequence[str] = (),
) -> RunFolder:
    """Make a run's folder, or join it, and announce jobs in its manifest before the first of them runs.

    Without a seed, the run keeps its own, or gets a random one.
    """

    def with_jobs(there: Manifest | None) -> Manifest:
        return announced(there or fresh_manifest(run_id, facts, seed), jobs, pytest_args)

    manifest = change_manifest(results, run_id, with_jobs)
    return RunFolder(path=results / run_id, run_id=run_id, seed=manifest.seed)


def change_manifest(results: Path, run_id: str, change: Callable[[Manifest | None], Manifest]) -> Manifest:
    """Write the manifest of a run, given the one that its folder has, if any; the run becomes the latest."""
    path = results / run_id
    with as_results_error(results):
        path.mkdir(parents=True, exist_ok=True)
        with hold(path / _LOCK):
            manifest = change(_read(path / "run.json"))
            write_json(path / "run.json", as_json(manifest))
        _point_latest(results, run_id)
    return manifest


def take_jobs(  # noqa: PLR0913 - each is something else
    results: Path, owned: OwnedRun, jobs: Sequence[Job], say: Callable[[str], None], *, party: str, goes_on: bool
) -> None:
    """Own jobs, all or none of them, before any of them starts, for as long as their run is owned.

    A job belongs to one party: if a second one ran it again, its attempts would pass for retries of the first, and so
    turn bad results good. Sessions of one nox process, such as that of a cell and that of a prefix of it, are one
    party: they run a job one after the other. If a run goes on, any party may take its jobs.

    Raises:
        UsageError: One of them is another party's.
    """
    path = results / owned.run_id
    with as_results_error(results):
        path.mkdir(parents=True, exist_ok=True)
        while (busy := _take_or_find_busy(path, owned, jobs, party, goes_on=goes_on)) is not None:
            say(f"waiting for {busy}: another session of this nox command runs it")
            owned.wait_for(busy)


def _take_or_find_busy(path: Path, owned: OwnedRun, jobs: Sequence[Job], party: str, *, goes_on: bool) -> str | None:
    """Own all jobs; or own none, and return one that another session of the same party runs at this moment."""
    taken: list[str] = []
    with ExitStack() as undo, hold(path / _LOCK):
        undo.callback(_give_back, owned, taken)
        owners = _owners(path / _OWNERS)
        for job in jobs:
            is_own = owners.get(job.id) == party
            if not owned.try_own(job.id):
                if is_own:
                    return job.id
                raise _is_others(job.id, owned.run_id, "is being run by another process")
            taken.append(job.id)
            if not (is_own or goes_on) and has_begun(path / "cells" / job.cell.id / job.name):
                raise _is_others(job.id, owned.run_id, "has been run already")
        write_json(path / _OWNERS, {**owners, **dict.fromkeys(taken, party)})
        undo.pop_all()
    return None


def _owners(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    owners = json.loads(path.read_text(encoding="utf-8"))
    return {str(job_id): str(party) for job_id, party in owners.items()}


def _give_back(owned: OwnedRun, taken: Iterable[str]) -> None:
    for job_id in taken:
        owned.disown(job_id)


class OthersJobError(UsageError):
    """A job belongs to another process, whose results stand."""


def _is_others(job_id: str, run_id: str, how: str) -> OthersJobError:
    return OthersJobError(
        f"{job_id} of the run {run_id} {how}.",
        why="A job belongs to the process that runs it first: attempts of two would look like retries of one.",
        remedy=f"Resume that run when it has ended (--resume, --lf), or start another one: unset "
        f"{RUN_ID_VARIABLE}, or give it another value.",
    )


def _read(path: Path) -> Manifest | None:
    if not path.exists():
        return None
    return parsed(Manifest, json.loads(path.read_text(encoding="utf-8")))


def write_json(path: Path, value: object) -> None:
    """Write a JSON file atomically."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    draft.replace(path)


def _point_latest(results: Path, run_id: str) -> None:
    draft = results / f".latest-{os.getpid()}"
    draft.unlink(missing_ok=True)
    draft.symlink_to(run_id, target_is_directory=True)
    draft.replace(results / "latest")


@contextmanager
def as_results_error(folder: Path) -> Iterator[None]:
    """Turn errors with files into :class:`ResultsError`."""
    try:
        yield
    except (OSError, ValueError) as error:
        msg = f"The results folder {folder} cannot be used."
        remedy = "Make it writable, or name another one with --results."
        raise ResultsError(msg, why=str(error), remedy=remedy) from error

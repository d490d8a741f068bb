"""What the shards of a suite go by: durations and pytest's cache, as they were when the first of them began.

All shards of a suite in a cell make the same split only if all of them collect the same tests and know the same
durations. The first of them change both, so the run keeps what it began with in its own folder, also for other
sessions that join it: the durations once, so that a shard that is run again has the same tests, and the cache for each
attempt, so that ``--lf`` in a run that is gone on with knows what has failed in it.
"""

import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from allranks.locking import hold
from allranks.matrix.model import Job
from allranks.report.durations import Durations
from allranks.report.durations_file import DurationsError, parse, read_durations, render
from allranks.schedule.folder import RunFolder, as_results_error

DURATIONS = "durations.json"


def take_snapshot(
    folder: RunFolder,
    jobs: Iterable[Job],
    durations: Path,
    say: Callable[[str], None],
    *,
    known: Durations | None = None,
) -> RunFolder:
    """Keep the durations that the shards among some jobs go by; of a run that is joined, what it has kept stays.

    Args:
        folder: The run's folder.
        jobs: What is to run; for whole suites alone, whose lengths only help to pack them, nothing is kept.
        durations: The file of durations.
        say: Prints one line.
        known: What shards go by in the place of that file: on every machine of a plan the same.

    Returns:
        The folder, with the durations of this run.

    Raises:
        ResultsError: The folder cannot be written.
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
    """The cache that an attempt starts with: for shards the same for all, however much the first have changed by then.

    Raises:
        ResultsError: The folder cannot be written.
    """
    cache, copy = folder.cache_of(job), folder.cache_for(job, attempt)
    with as_results_error(folder.path):
        if copy != cache:
            with hold(folder.lock):
                _copy(cache, copy)
    return copy


def _copy(cache: Path, copy: Path) -> None:
    """Copy a cache as it is now, nothing where there is none; a copy that is there already stays."""
    if copy.exists():
        return
    draft = copy.with_name(f".{copy.name}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    if cache.is_dir():
        shutil.copytree(cache, draft, dirs_exist_ok=True)
    draft.replace(copy)

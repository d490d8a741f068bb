"""What the shards of a suite go by in one run: durations, and pytest's cache, as they were when the run began.

All shards of a suite in a cell make the same split only if all of them collect the same tests and know the same
durations. The first shards of a run change both, so the run keeps what it began with in its own folder, also for other
sessions that join it.
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


def take_snapshot(folder: RunFolder, jobs: Iterable[Job], durations: Path, say: Callable[[str], None]) -> RunFolder:
    """Keep what the shards among some jobs go by; of a run that is joined, what it has kept stays.

    Args:
        folder: The run's folder.
        jobs: What is to run; nothing is read or written for whole suites.
        durations: The file of durations.
        say: Prints one line.

    Returns:
        The folder, with the durations of this run.

    Raises:
        ResultsError: The folder cannot be written.
    """
    shards = [job for job in jobs if job.shard]
    if not shards:
        return folder
    with as_results_error(folder.path), hold(folder.path / ".manifest.lock"):
        for job in shards:
            _keep_cache(folder.cache_of(job), folder.cache_for(job))
        return replace(folder, durations=_kept(folder.path / DURATIONS, durations, say))


def _kept(kept: Path, durations: Path, say: Callable[[str], None]) -> Durations:
    """The run's own copy of the durations, made where there is none yet."""
    if not kept.exists():
        draft = kept.with_name(f".{kept.name}")
        draft.write_text(render(read_durations(durations, say)), encoding="utf-8")
        draft.replace(kept)
    try:
        return parse(kept.read_text(encoding="utf-8"))
    except DurationsError as error:
        msg = f"{kept} {error}"
        raise ValueError(msg) from error


def _keep_cache(cache: Path, copy: Path) -> None:
    """Copy a cache as it is now, nothing where there is none; a copy that is there already stays."""
    if copy.exists():
        return
    draft = copy.with_name(f".{copy.name}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    if cache.is_dir():
        shutil.copytree(cache, draft, dirs_exist_ok=True)
    draft.replace(copy)

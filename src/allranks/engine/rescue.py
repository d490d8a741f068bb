"""Brings home what a job had found when its run was killed, before what is left of the job is removed."""

import tarfile
from collections.abc import Callable
from pathlib import Path

from allranks.errors import EngineError
from allranks.harness.rank_xml import write_missing_xml

HOME_LABEL = "allranks.results"
"""Names the folder on this host that a job's results go to."""

WORLD_SIZE_LABEL = "allranks.world_size"

RECORD = "job.json"
"""What a run leaves beside the results of a job that it has seen to its end."""


def rescue(home: Path, fetch: Callable[[Path], None], *, cell: str, suite: str, world_size: int) -> str:
    """Have a dead run's job leave its results where they would have gone, if nobody has put them there.

    Args:
        home: The folder of the attempt in the run's results.
        fetch: Puts the results into a folder.
        cell: The job's.
        suite: The job's name in its cell.
        world_size: The cell's.

    Returns:
        What to say of it; empty where there was nothing to bring home, or no way to: the report has an error for the
        job as long as its record is missing.
    """
    if not home.is_dir() or (home / RECORD).exists():
        return ""
    try:
        fetch(home)
        write_missing_xml(home, cell=cell, suite=suite, world_size=world_size)
    except (OSError, EngineError, tarfile.TarError):
        return ""
    return f" (its results so far are in {home})" if any(home.iterdir()) else ""

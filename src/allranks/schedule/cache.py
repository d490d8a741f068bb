"""pytest's cache of each cell and suite, which outlives the runs: ``--lf`` goes by what failed last time."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from allranks.engine.spec import FileCopy
from allranks.harness.config import PYTEST_CACHE

_VALUES = "v"
"""The folder of pytest's cache that holds values; the rest explains the cache to people, or belongs to tests."""


def carried_files(cache: Path) -> Iterator[FileCopy]:
    """What a job takes along of an earlier one's cache; nothing where there is none yet."""
    if cache.is_dir():
        yield FileCopy(source=cache, target=Path(PYTEST_CACHE) / _VALUES)


def keep_cache(results: Path, cache: Path) -> None:
    """Take a job's cache out of the results that came home, for the next job of this cell and suite.

    Each file is there whole or not at all, also for another run that starts at this moment.

    Raises:
        OSError: The cache cannot be written.
    """
    values = results / PYTEST_CACHE / _VALUES
    for path in sorted(values.rglob("*")):
        if path.is_file() and not path.is_symlink():
            target = cache / path.relative_to(values)
            target.parent.mkdir(parents=True, exist_ok=True)
            draft = target.with_name(f".{target.name}.{os.getpid()}")
            shutil.copyfile(path, draft)
            draft.replace(target)
    shutil.rmtree(results / PYTEST_CACHE, ignore_errors=True)

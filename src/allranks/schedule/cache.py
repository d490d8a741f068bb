"""pytest's cache of each cell and suite, which outlives the runs: ``--lf`` goes by what failed last time."""

import json
import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from allranks.engine.spec import FileCopy
from allranks.harness.config import COVERAGE, EARLIER_COVERAGE, PYTEST_CACHE
from allranks.locking import hold

_VALUES = "v"
"""The folder of pytest's cache that holds values; the rest explains the cache to people, or belongs to tests."""

_LAST_FAILED = Path("cache") / "lastfailed"
"""A JSON object whose keys are the tests, and what could not be collected, that failed (pytest's cacheprovider.py)."""


def carried_files(cache: Path) -> Iterator[FileCopy]:
    """What a job takes along of an earlier one's cache; nothing where there is none yet."""
    if cache.is_dir() and next(cache.iterdir(), None):
        yield FileCopy(source=cache, target=Path(PYTEST_CACHE) / _VALUES)


def earlier_coverage(attempt: Path) -> Iterator[FileCopy]:
    """What a job takes along of the attempt that it goes on with: the figure of both is one."""
    folder = attempt / COVERAGE
    if folder.is_dir() and not folder.is_symlink():
        yield FileCopy(source=folder, target=Path(EARLIER_COVERAGE))


def keep_cache(results: Path, cache: Path) -> None:
    """Take a job's cache out of the results that came home, for the next job of this cell and suite.

    Each file is there whole or not at all, also for another run that starts at this moment.

    Raises:
        OSError: The cache cannot be written.
    """
    _put(results / PYTEST_CACHE / _VALUES, cache)
    shutil.rmtree(results / PYTEST_CACHE, ignore_errors=True)


def keep_cache_of_shard(results: Path, cache: Path, began_with: Path, own: Collection[str]) -> None:
    """Take a shard's cache out of its results, and put what it says of its own tests into that of the whole suite.

    Args:
        results: The job's results.
        cache: The suite's cache in this cell, which all shards share.
        began_with: The cache as it was for all shards of the run.
        own: Node ids of the tests that are the shard's.

    Raises:
        OSError: The cache cannot be read or written.
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
    """What has failed in the whole suite, after one more of its shards.

    A module that can be collected again leaves its tests in the cache as failed; they are their shards' to judge.
    """
    mended = before.keys() - after.keys()
    broken = {name for name in after.keys() - before.keys() if name in own or "::" not in name}
    return {**{name: now[name] for name in now if name not in mended}, **{name: after[name] for name in broken}}


def _failed(path: Path) -> dict[str, object]:
    """What a cache says has failed; nothing where it says nothing, or what pytest would not understand either."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}

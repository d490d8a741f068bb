"""Reads the files of a job's ranks: one after the other, or large ones on several cores."""

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from allranks.report.columns import Key, RankFile
from allranks.report.rank_xml import RankReader

WORTH_PROCESSES: Final = 16 << 20
"""Bytes of a job's files from which on more processes pay: a core reads as much in the time that two need to start."""

MOST_PROCESSES: Final = 8


def read_ranks(paths: Sequence[Path]) -> list[RankFile]:
    """The results in the files of one job, in the order of the files."""
    texts: dict[str, str] = {}
    return [_sharing(file, texts) for file in _read(paths)]


def _read(paths: Sequence[Path]) -> Iterator[RankFile]:
    processes = min(_cores(), len(paths), MOST_PROCESSES)
    if processes > 1 and sum(map(_size, paths)) >= WORTH_PROCESSES:
        return _read_side_by_side(paths, processes)
    return map(RankReader().read, paths)


def _sharing(file: RankFile, texts: dict[str, str]) -> RankFile:
    """The same results, of whose texts each is in memory once: what goes wrong on one rank, others mostly say too."""

    def one(text: str) -> str:
        return texts.setdefault(text, text)

    details = {
        place: replace(
            result,
            nodeid=one(result.nodeid),
            message=one(result.message),
            text=one(result.text),
            stdout=one(result.stdout),
            stderr=one(result.stderr),
        )
        for place, result in file.details.items()
    }
    return replace(file, details=details)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read_side_by_side(paths: Sequence[Path], processes: int) -> Iterator[RankFile]:
    # A run has threads, so its process is not forked.
    known: dict[int, tuple[Key, ...]] = {}
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for process, has_known_keys, file in pool.imap(_read_in_worker, paths):
            if not has_known_keys:
                known[process] = next((keys for keys in known.values() if keys == file.keys), file.keys)
            yield replace(file, keys=known[process])


class _Worker:
    """What a process remembers between two files: names that it has sent already are not sent again."""

    def __init__(self) -> None:
        self._reader = RankReader()
        self._sent: tuple[Key, ...] | None = None

    def read(self, path: Path) -> tuple[int, bool, RankFile]:
        file = self._reader.read(path)
        if file.keys is self._sent:
            return os.getpid(), True, replace(file, keys=())
        self._sent = file.keys
        return os.getpid(), False, file


@cache
def _worker() -> _Worker:
    return _Worker()


def _read_in_worker(path: Path) -> tuple[int, bool, RankFile]:
    return _worker().read(path)

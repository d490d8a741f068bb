"""Reads what ranks left, job by job, journals and the XML of ranks: on several cores if there is much to read."""

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from allranks.records import JOURNAL
from allranks.report.columns import Key, RankFile
from allranks.report.journal import read_journal
from allranks.report.rank_xml import RankReader

WORTH_PROCESSES: Final = 16 << 20
"""Bytes from which on more processes pay: a core reads as much in the time that two need to start."""

MOST_PROCESSES: Final = 8

_ERRAND: Final = 2 << 20
"""Bytes that a process is sent for at once, about: fewer, and it is asked for more often than it works."""

_AHEAD: Final = 2
"""Errands for each process that may be done and not yet be wanted."""


def read_ranks(paths: Sequence[Path]) -> list[RankFile]:
    """The results in the files of one job, in the order of the files."""
    return next(read_jobs([paths]))


def read_jobs(jobs: Sequence[Sequence[Path]]) -> Iterator[list[RankFile]]:
    """The results in the files of each job, in the order of the jobs; a few jobs may be read ahead.

    Args:
        jobs: The files of each.
    """
    read = _read([path for paths in jobs for path in paths])
    for paths in jobs:
        texts: dict[str, str] = {}
        yield [_sharing(file, texts) for files in islice(read, len(paths)) for file in files]


def _read(paths: Sequence[Path]) -> Iterator[list[RankFile]]:
    """The results in each file: those of all ranks in a journal, those of one in any other."""
    sizes = [_size(path) for path in paths]
    processes = min(_cores(), len(paths), MOST_PROCESSES)
    if processes > 1 and sum(sizes) >= WORTH_PROCESSES:
        return _read_side_by_side(list(_errands(paths, sizes)), processes)
    reader = RankReader()
    return (_read_one(path, reader) for path in paths)


def _read_one(path: Path, reader: RankReader) -> list[RankFile]:
    return read_journal(path) if path.name == JOURNAL else [reader.read(path)]


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


def _errands(paths: Sequence[Path], sizes: Sequence[int]) -> Iterator[list[Path]]:
    """The files in their order, some at a time."""
    errand: list[Path] = []
    size = 0
    for path, more in zip(paths, sizes, strict=True):
        if errand and size + more > _ERRAND:
            yield errand
            errand, size = [], 0
        errand.append(path)
        size += more
    if errand:
        yield errand


class _Read(NamedTuple):
    """What comes back from an errand.

    Attributes:
        process: Whose it was.
        files: The results in each path. Those with the same tests as the ones before, of the same process, are without
            their keys.
        has_keys: For each of them, whether it is with its keys.
    """

    process: int
    files: list[list[RankFile]]
    has_keys: list[bool]


def _read_side_by_side(errands: Iterable[Sequence[Path]], processes: int) -> Iterator[list[RankFile]]:
    known: dict[int, tuple[Key, ...]] = {}

    def complete(file: RankFile, process: int, *, has_keys: bool) -> RankFile:
        if has_keys:
            known[process] = next((keys for keys in known.values() if keys == file.keys), file.keys)
        return replace(file, keys=known[process])

    for read in _in_order(errands, processes):
        has_keys = iter(read.has_keys)
        for files in read.files:
            yield [complete(file, read.process, has_keys=next(has_keys)) for file in files]


def _in_order(errands: Iterable[Sequence[Path]], processes: int) -> Iterator[_Read]:
    """What the errands brought, in their order; no more of them are sent out than will soon be wanted."""
    # A fork has all modules already; a process with threads, as a run is, must not be forked.
    method = "fork" if threading.active_count() == 1 else "spawn"
    pool = ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context(method))
    left = iter(errands)
    try:
        sent: deque[Future[_Read]] = deque(
            pool.submit(_read_in_worker, errand) for errand in islice(left, processes * _AHEAD)
        )
        while sent:
            read = sent.popleft().result()
            sent.extend(pool.submit(_read_in_worker, errand) for errand in islice(left, 1))
            yield read
    finally:
        pool.shutdown(cancel_futures=True)


class _Worker:
    """What a process remembers between two files: names that it has sent already are not sent again."""

    def __init__(self) -> None:
        self._reader = RankReader()
        self._sent: tuple[Key, ...] | None = None

    def read(self, paths: Sequence[Path]) -> _Read:
        read = _Read(os.getpid(), [], [])
        for path in paths:
            read.files.append([])
            for file in _read_one(path, self._reader):
                is_sent = file.keys is self._sent
                read.files[-1].append(replace(file, keys=()) if is_sent else file)
                read.has_keys.append(not is_sent)
                self._sent = file.keys
        return read


@cache
def _worker() -> _Worker:
    return _Worker()


def _read_in_worker(paths: Sequence[Path]) -> _Read:
    return _worker().read(paths)

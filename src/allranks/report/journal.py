"""Writes the journal of an attempt at a job, and reads it as the results of all ranks.

Verdicts come from the journal. Files that the job itself leaves are additional evidence.

Of several records of one test and rank, the first failure counts, and a later pass never improves it. A record about a
rank whose node was lost is replaced by any record from that node itself.
"""

import os
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from sys import intern
from typing import BinaryIO, Final, TypeVar

from allranks.protocol.outcomes import Outcome
from allranks.protocol.records import (
    LINE_LIMIT,
    MOST_RANKS,
    SCHEMA,
    Finished,
    Imported,
    JobStarted,
    Passed,
    RankEnded,
    Record,
    TestStarted,
    decode,
    encode,
)
from allranks.protocol.typed_json import RecordError
from allranks.protocol.xml_text import cut, legal, readable, split_nodeid, xml_id
from allranks.report.rank_timeline import TimelineReader
from allranks.report.results import NO_ARRIVAL, Arrivals, Durations, Key, RankFile, RankResult
from allranks.report.untrusted import duration, open_regular, other_schema

_T = TypeVar("_T")

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC

_GROWTH: Final = 1024
"""The number of tests by which a column grows."""

NO_RESULT: Final = "no result arrived: the job and the rank ended during this test"


class JournalWriter:
    """Appends records to a file, which is created with the first record."""

    def __init__(self, path: Path) -> None:
        self.size = 0  # bytes
        self._path = path
        self._file: int | None = None

    def write(self, record: Record) -> None:
        """Append a record; if that fails, the last line may be cut short."""
        if self._file is None:
            self._file = os.open(self._path, _FLAGS, 0o644)
        line = memoryview(encode(record) + b"\n")
        self.size += len(line)
        while line:
            line = line[os.write(self._file, line) :]

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


@dataclass(slots=True)
class _RankColumn:
    """The results of one rank, by the index of the test."""

    at: Arrivals
    seconds: Durations = field(default_factory=Durations)
    has_result: bytearray = field(default_factory=bytearray)  # 1 for tests of which the rank has a result, else 0
    ends: dict[int, RankEnded] = field(default_factory=dict)  # the records of results that are not plain passes
    reruns: dict[int, list[RankResult]] = field(default_factory=dict)  # the earlier tries of tests

    def reserve(self, count: int) -> None:
        """Extend the columns to at least this many tests."""
        if count > len(self.has_result):
            self.resize(max(count, len(self.has_result) + _GROWTH))

    def resize(self, count: int) -> None:
        """Cut or extend the columns to this many tests."""
        self.seconds.resize(count)
        self.at.resize(count)
        self.has_result = self.has_result[:count].ljust(count, b"\0")

    def add_pass(self, index: int, seconds: float, at: float) -> None:
        """Record that a test passed, unless it already has a result."""
        self.reserve(index + 1)
        if not self.has_result[index]:
            self.set(index, seconds, at)

    def set(self, index: int, seconds: float, at: float) -> None:
        self.seconds[index], self.at[index], self.has_result[index] = duration(seconds), at, True

    def start_rerun(self, index: int, key: Key, rank: int) -> None:
        """Move the result of a test to its earlier tries, because it is about to run again."""
        self.reserve(index + 1)
        ended, at = self.ends.pop(index, None), self.at[index]
        if ended is not None:
            result = replace(_result(key, ended, {}), stdout="", stderr="")
        elif not self.has_result[index]:
            result = _missing(key, rank)
        else:
            result = replace(_missing(key, rank), outcome=Outcome.PASSED, at=at, message="", text="")
        self.reruns.setdefault(index, []).append(result)
        self.set(index, 0.0, NO_ARRIVAL)
        self.has_result[index] = False

    def add_end(self, index: int, ended: RankEnded) -> None:
        """Record an end that is not a plain pass."""
        before = self.ends.get(index)
        if before is None or _weight(ended) > _weight(before):
            self.ends[index] = ended


def _missing(key: Key, rank: int) -> RankResult:
    return RankResult(
        nodeid=key.nodeid,
        classname=key.classname,
        name=key.name,
        rank=rank,
        outcome=Outcome.MISSING,
        message=NO_RESULT,
        text=NO_RESULT,
    )


def _weight(ended: RankEnded) -> int:
    """The weight of a record: of several, the one with the largest weight counts, then the first."""
    if ended.is_lost:
        return 0
    return 2 if ended.outcome.is_bad else 1


@dataclass(slots=True)
class _Tests:
    """The tests of a journal, in the order of their first record."""

    index: dict[str, int] = field(default_factory=dict)  # by node id
    world_sizes: dict[int, int] = field(default_factory=dict)
    started: set[int] = field(default_factory=set)
    reruns: dict[int, int] = field(default_factory=dict)  # how often tests were rerun

    def index_of(self, nodeid: str) -> int:
        return self.index.setdefault(nodeid, len(self.index))


class JournalReader:
    """Collects records, and turns them into the results of ranks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._texts: dict[str, str] = {}  # ranks often report equal texts, which become one object
        self._job: JobStarted | None = None
        self._tests = _Tests()
        self._arrivals = array("d")
        self._columns: dict[int, _RankColumn] = {}
        self._is_finished = False
        self._torch = ""
        self._timelines = TimelineReader()

    def add(self, record: Record) -> None:
        """Add the next record; RecordError if it is implausible."""
        if (self._job is None) != isinstance(record, JobStarted):
            msg = "is not the first record of a journal" if self._job is None else "begins another journal"
            raise RecordError(msg)
        self._timelines.add(record)
        match record:
            case JobStarted():
                self._begin(record)
            case Imported():
                self._torch = record.torch
            case TestStarted():
                index = self._tests.index_of(record.nodeid)
                self._tests.started.add(index)
                if record.number > 1:
                    self._tests.reruns[index] = self._tests.reruns.get(index, 0) + 1
                    for rank, column in self._columns.items():
                        column.start_rerun(index, _key(record.nodeid), rank)
            case Passed():
                self._pass(record)
            case RankEnded():
                self._end(record)
            case Finished():
                self._is_finished = True

    def _begin(self, job: JobStarted) -> None:
        if job.schema != SCHEMA:
            msg = f"is {other_schema(job.schema, SCHEMA)}"
            raise RecordError(msg)
        _check_rank(0, job.world_size)
        self._job = job

    def _pass(self, passed: Passed) -> None:
        if not len(passed.ranks) == len(passed.arrived) == len(passed.seconds):
            msg = "does not have one time per rank"
            raise RecordError(msg)
        for rank in passed.ranks:
            _check_rank(rank, passed.world_size)
        index = self._index(passed)
        for rank, at, seconds in zip(passed.ranks, passed.arrived, passed.seconds, strict=True):
            self._column(rank).add_pass(index, seconds, at)

    def _end(self, ended: RankEnded) -> None:
        _check_rank(ended.rank, ended.world_size)
        index, column = self._index(ended), self._column(ended.rank)
        if ended.outcome is Outcome.PASSED:
            column.add_pass(index, ended.seconds, ended.arrived)
        else:
            column.add_end(index, ended)

    def _column(self, rank: int) -> _RankColumn:
        if rank not in self._columns:
            self._columns[rank] = _RankColumn(Arrivals(self._arrivals))
        return self._columns[rank]

    def _index(self, end: Passed | RankEnded) -> int:
        index = self._tests.index_of(end.nodeid)
        self._tests.world_sizes[index] = end.world_size
        return index

    def files(self, problem: str) -> list[RankFile]:
        """The results of each rank; a problem of the journal becomes a separate file without a rank."""
        failed = [RankFile(path=self._path, rank=None, problem=f"{self._path.name} {problem}.")] if problem else []
        if self._job is None:
            return failed
        keys = tuple(map(_key, self._tests.index))
        parts = _Parts(keys, self._tests.world_sizes)
        ranks = sorted({*range(self._job.world_size), *self._columns})
        return [*(self._file(rank, self._job, parts) for rank in ranks), *failed]

    def _file(self, rank: int, job: JobStarted, parts: "_Parts") -> RankFile:
        column = self._column(rank)
        column.resize(len(parts.keys))
        details: dict[int, RankResult] = {}
        missing = dict.fromkeys(self._without_result(rank, column, job), NO_RESULT)
        for index in missing:
            column.has_result[index] = True
        for index, ended in column.ends.items():
            if _weight(ended) or not column.has_result[index]:
                column.set(index, ended.seconds, ended.arrived)
                details[index] = _result(parts.keys[index], ended, self._texts)
        part = parts.of(column)
        reruns = part.renumbered(column.reruns)
        details = part.renumbered(details)
        file = RankFile(
            path=self._path,
            rank=rank,
            properties={
                "allranks.rank": str(rank),
                "allranks.world_size": str(job.world_size),
                "allranks.cell": xml_id(job.cell),
                "allranks.suite": xml_id(job.suite),
            },
            keys=part.keys,
            seconds=part.seconds(column),
            at=part.arrivals(column),
            world_sizes=part.world_sizes,
            details=details,
            is_unfinished=not self._is_finished,
            timelines=self._timelines.found,
            tags=self._timelines.tags,
            torch=self._torch,
        )
        for index, text in part.renumbered(missing).items():
            details[index] = replace(file.result(index), outcome=Outcome.MISSING, message=text, text=text)
        for index, count in part.renumbered(self._tests.reruns).items():
            known = reruns.get(index, [])
            # This rank has no result of the tries before the first one in its column.
            earlier = (*[_missing(part.keys[index], rank)] * (count - len(known)), *known)
            details[index] = replace(file.result(index), reruns=earlier)
        return file

    def _without_result(self, rank: int, column: _RankColumn, job: JobStarted) -> list[int]:
        """The tests that were started on this rank, but have no result from it."""
        if 0 not in column.has_result:
            return []
        sizes = self._tests.world_sizes
        return [
            index
            for index in sorted(self._tests.started)
            if not column.has_result[index] and index not in column.ends and rank < sizes.get(index, job.world_size)
        ]


@dataclass(frozen=True)
class _JournalPart:
    """The tests of a journal of which a rank has results."""

    keys: tuple[Key, ...]
    world_sizes: "array[int]"
    indices: tuple[int, ...] | None = None  # None for all tests
    first_arrivals: "array[float]" = field(default_factory=lambda: array("d"))

    def seconds(self, column: _RankColumn) -> Durations:
        seconds = column.seconds
        return seconds if self.indices is None else Durations.of([seconds[index] for index in self.indices])

    def arrivals(self, column: _RankColumn) -> Arrivals:
        if self.indices is None:
            return column.at
        arrivals = Arrivals(self.first_arrivals)
        arrivals.extend([column.at[index] for index in self.indices])
        return arrivals

    def renumbered(self, values: dict[int, _T]) -> dict[int, _T]:
        """Values by their indices among these tests."""
        if self.indices is None or not values:
            return values
        return {new: values[old] for new, old in enumerate(self.indices) if old in values}


class _Parts:
    """The parts of a journal's tests; ranks with the same tests share one part."""

    def __init__(self, keys: tuple[Key, ...], world_sizes: Mapping[int, int]) -> None:
        self.keys = keys
        self._all = _JournalPart(keys, array("H", (world_sizes.get(index, 0) for index in range(len(keys)))))
        self._others: dict[tuple[int, ...], _JournalPart] = {}

    def of(self, column: _RankColumn) -> _JournalPart:
        """The tests of which a rank has results."""
        if 0 not in column.has_result:
            return self._all
        indices = tuple(compress(range(len(self.keys)), column.has_result))
        if indices not in self._others:
            sizes = array("H", (self._all.world_sizes[index] for index in indices))
            self._others[indices] = _JournalPart(tuple(self.keys[index] for index in indices), sizes, indices)
        return self._others[indices]


def _key(nodeid: str) -> Key:
    stated = xml_id(nodeid)
    classname, name = split_nodeid(stated)
    return Key(intern(classname), name, stated)


def _check_rank(rank: int, world_size: int) -> None:
    if not 0 <= rank < world_size <= MOST_RANKS:
        msg = f"is about rank {rank}, with a world size of {world_size}"
        raise RecordError(msg)


def _result(key: Key, ended: RankEnded, texts: dict[str, str]) -> RankResult:
    def one(text: str) -> str:
        return texts.setdefault(text, text)

    # Rank XML has no element for an unexpected pass, and therefore cannot have its text.
    has_text = ended.outcome is not Outcome.XPASSED
    message = readable(ended.message or ended.outcome)
    return RankResult(
        nodeid=key.nodeid,
        classname=key.classname,
        name=key.name,
        rank=ended.rank,
        outcome=ended.outcome,
        at=ended.arrived,
        consequence=ended.consequence,
        caused_by=ended.caused_by,
        skip_kind=ended.skip_kind,
        skip_code=ended.skip_code,
        gpus_needed=ended.gpus_needed,
        phase=legal(ended.phase),
        message=one(cut(message)) if has_text else "",
        text=one(cut(readable(ended.text) or message)) if has_text else "",
        duration=duration(ended.seconds),
        stdout=one(cut(readable(ended.stdout))),
        stderr=one(cut(readable(ended.stderr))),
        world_size=ended.world_size,
    )


def read_journal(path: Path) -> list[RankFile]:
    """Read the results of all ranks, in the order of ranks.

    The content of the file raises no error. If a record cannot be read, those before it count, and one more file,
    without a rank, has the reason. An incomplete last line is ignored: the run was killed while writing it.
    """
    reader = JournalReader(path)
    try:
        with open_regular(path) as file:
            problem = _read(reader, file)
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
    return reader.files(problem)


def _read(reader: JournalReader, file: BinaryIO) -> str:
    """Read the records of a file; return why that failed, or an empty text."""
    number = 0
    while line := file.readline(LINE_LIMIT + 2):
        number += 1
        is_whole = line.endswith(b"\n")
        if not is_whole and len(line) <= LINE_LIMIT:
            break
        try:
            reader.add(decode(line[:-1] if is_whole else line))
        except RecordError as error:
            return f"cannot be read to the end: line {number} {error}"
    return "" if number else "is empty"

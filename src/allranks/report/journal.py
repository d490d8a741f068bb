"""The journal of an attempt at a job: written record by record, read as the outcomes of all ranks.

Verdicts come from the journal. Files that the job itself leaves are additional evidence.

Of several records of one test and rank the first bad one counts, and a later good one never improves it. A record
about a rank whose node is lost gives way to any record from that node itself.
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
from allranks.report.rank_course import CourseReader
from allranks.report.results import ABSENT, Arrivals, Durations, Key, RankFile, RankResult
from allranks.report.untrusted import duration, open_regular, other_schema

_T = TypeVar("_T")

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC

_ROOM: Final = 1024
"""Tests for which a column grows at once."""

NOTHING_CAME: Final = "nothing came back: job and rank ended in this test"


class JournalWriter:
    """A file that records are appended to, made with the first of them; its size is in bytes."""

    def __init__(self, path: Path) -> None:
        self.size = 0
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
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


@dataclass(slots=True)
class _RankColumn:
    """The results of one rank, by the index of the test."""

    at: Arrivals
    seconds: Durations = field(default_factory=Durations)
    has_result: bytearray = field(default_factory=bytearray)  # 1 for tests that the rank has a result of, else 0
    ends: dict[int, RankEnded] = field(default_factory=dict)  # the records with more than *passed*
    reruns: dict[int, list[RankResult]] = field(default_factory=dict)  # the earlier tries of tests that ran again

    def reach(self, count: int) -> None:
        """Extend the columns to this many tests, or more."""
        if count > len(self.has_result):
            self.resize(max(count, len(self.has_result) + _ROOM))

    def resize(self, count: int) -> None:
        """Make the columns as long as there are tests."""
        self.seconds.resize(count)
        self.at.resize(count)
        self.has_result = self.has_result[:count].ljust(count, b"\0")

    def put(self, place: int, seconds: float, at: float) -> None:
        """Record that a test has passed; repetitions are ignored."""
        self.reach(place + 1)
        if not self.has_result[place]:
            self.set(place, seconds, at)

    def set(self, place: int, seconds: float, at: float) -> None:
        """Record a result."""
        self.seconds[place], self.at[place], self.has_result[place] = duration(seconds), at, True

    def begin_again(self, place: int, key: Key, rank: int) -> None:
        """Move the result of a test that runs again to its earlier tries."""
        self.reach(place + 1)
        ended, at = self.ends.pop(place, None), self.at[place]
        if ended is not None:
            result = replace(_result(key, ended, {}), stdout="", stderr="")
        elif not self.has_result[place]:
            result = _missing(key, rank)
        else:
            result = replace(_missing(key, rank), outcome=Outcome.PASSED, at=at, message="", text="")
        self.reruns.setdefault(place, []).append(result)
        self.set(place, 0.0, ABSENT)
        self.has_result[place] = False

    def end(self, place: int, ended: RankEnded) -> None:
        """Record an end that is not a plain pass."""
        before = self.ends.get(place)
        if before is None or _weight(ended) > _weight(before):
            self.ends[place] = ended


def _missing(key: Key, rank: int) -> RankResult:
    """The result of a rank from which nothing came."""
    return RankResult(
        nodeid=key.nodeid,
        classname=key.classname,
        name=key.name,
        rank=rank,
        outcome=Outcome.MISSING,
        message=NOTHING_CAME,
        text=NOTHING_CAME,
    )


def _weight(ended: RankEnded) -> int:
    """The weight of an end: of several, the greatest counts, then the first."""
    if ended.is_lost:
        return 0
    return 2 if ended.outcome.is_bad else 1


@dataclass(slots=True)
class _Tests:
    """The tests of a journal, in the order of their first record."""

    places: dict[str, int] = field(default_factory=dict)
    world_sizes: dict[int, int] = field(default_factory=dict)
    started: set[int] = field(default_factory=set)
    further_tries: dict[int, int] = field(default_factory=dict)  # the number of times that tests ran again

    def place_of(self, nodeid: str) -> int:
        return self.places.setdefault(nodeid, len(self.places))


class JournalReader:
    """Collects records, and turns them into files of ranks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._texts: dict[str, str] = {}  # ranks mostly report the same failures: equal texts become one object
        self._job: JobStarted | None = None
        self._tests = _Tests()
        self._arrivals = array("d")
        self._columns: dict[int, _RankColumn] = {}
        self._is_finished = False
        self._torch = ""
        self._courses = CourseReader()

    def take(self, record: Record) -> None:
        """Add the next record; an implausible one is a RecordError."""
        if (self._job is None) != isinstance(record, JobStarted):
            msg = "is not the first record of a journal" if self._job is None else "begins another journal"
            raise RecordError(msg)
        self._courses.take(record)
        match record:
            case JobStarted():
                self._begin(record)
            case Imported():
                self._torch = record.torch
            case TestStarted():
                place = self._tests.place_of(record.nodeid)
                self._tests.started.add(place)
                if record.number > 1:
                    self._tests.further_tries[place] = self._tests.further_tries.get(place, 0) + 1
                    for rank, column in self._columns.items():
                        column.begin_again(place, _key(record.nodeid), rank)
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
            msg = "has not as many times as ranks"
            raise RecordError(msg)
        for rank in passed.ranks:
            _check_rank(rank, passed.world_size)
        place = self._place(passed)
        for rank, at, seconds in zip(passed.ranks, passed.arrived, passed.seconds, strict=True):
            self._column(rank).put(place, seconds, at)

    def _end(self, ended: RankEnded) -> None:
        _check_rank(ended.rank, ended.world_size)
        place, column = self._place(ended), self._column(ended.rank)
        if ended.outcome is Outcome.PASSED:
            column.put(place, ended.seconds, ended.arrived)
        else:
            column.end(place, ended)

    def _column(self, rank: int) -> _RankColumn:
        if rank not in self._columns:
            self._columns[rank] = _RankColumn(Arrivals(self._arrivals))
        return self._columns[rank]

    def _place(self, end: Passed | RankEnded) -> int:
        place = self._tests.place_of(end.nodeid)
        self._tests.world_sizes[place] = end.world_size
        return place

    def files(self, problem: str) -> list[RankFile]:
        """The results of each rank; ``problem`` becomes a separate file, since it belongs to no rank."""
        troubled = [RankFile(path=self._path, rank=None, problem=f"{self._path.name} {problem}.")] if problem else []
        if self._job is None:
            return troubled
        keys = tuple(map(_key, self._tests.places))
        share = _Shares(keys, self._tests.world_sizes)
        ranks = sorted({*range(self._job.world_size), *self._columns})
        return [*(self._file(rank, self._job, share) for rank in ranks), *troubled]

    def _file(self, rank: int, job: JobStarted, share: "_Shares") -> RankFile:
        column = self._column(rank)
        column.resize(len(share.keys))
        details: dict[int, RankResult] = {}
        missing = dict.fromkeys(self._unanswered(rank, column, job), NOTHING_CAME)
        for place in missing:
            column.has_result[place] = True
        for place, ended in column.ends.items():
            if _weight(ended) or not column.has_result[place]:
                column.set(place, ended.seconds, ended.arrived)
                details[place] = _result(share.keys[place], ended, self._texts)
        part = share.of(column)
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
            courses=self._courses.found,
            tags=self._courses.tags,
            torch=self._torch,
        )
        for place, text in part.renumbered(missing).items():
            details[place] = replace(file.result(place), outcome=Outcome.MISSING, message=text, text=text)
        for place, count in part.renumbered(self._tests.further_tries).items():
            told = reruns.get(place, [])
            # This rank has no result of the tries before the first of these.
            earlier = (*[_missing(part.keys[place], rank)] * (count - len(told)), *told)
            details[place] = replace(file.result(place), reruns=earlier)
        return file

    def _unanswered(self, rank: int, column: _RankColumn, job: JobStarted) -> list[int]:
        """The tests that were started on this rank too, but have no result from it."""
        if 0 not in column.has_result:
            return []
        sizes = self._tests.world_sizes
        return [
            place
            for place in sorted(self._tests.started)
            if not column.has_result[place] and place not in column.ends and rank < sizes.get(place, job.world_size)
        ]


@dataclass(frozen=True)
class _JournalPart:
    """The tests of a journal that a rank has results of, possibly all of them."""

    keys: tuple[Key, ...]
    world_sizes: "array[int]"
    places: tuple[int, ...] | None = None
    first_arrivals: "array[float]" = field(default_factory=lambda: array("d"))

    def seconds(self, column: _RankColumn) -> Durations:
        """The seconds of these tests."""
        seconds = column.seconds
        return seconds if self.places is None else Durations.of([seconds[place] for place in self.places])

    def arrivals(self, column: _RankColumn) -> Arrivals:
        """The times of arrival of these tests."""
        if self.places is None:
            return column.at
        arrivals = Arrivals(self.first_arrivals)
        arrivals.extend([column.at[place] for place in self.places])
        return arrivals

    def renumbered(self, values: dict[int, _T]) -> dict[int, _T]:
        """Values by their indices among these tests."""
        if self.places is None or not values:
            return values
        return {new: values[old] for new, old in enumerate(self.places) if old in values}


class _Shares:
    """The parts of a journal's tests; ranks with the same tests share one part."""

    def __init__(self, keys: tuple[Key, ...], world_sizes: Mapping[int, int]) -> None:
        self.keys = keys
        self._all = _JournalPart(keys, array("H", (world_sizes.get(place, 0) for place in range(len(keys)))))
        self._others: dict[tuple[int, ...], _JournalPart] = {}

    def of(self, column: _RankColumn) -> _JournalPart:
        """The tests that a rank has results of."""
        if 0 not in column.has_result:
            return self._all
        places = tuple(compress(range(len(self.keys)), column.has_result))
        if places not in self._others:
            sizes = self._all.world_sizes
            told = array("H", (sizes[place] for place in places))
            self._others[places] = _JournalPart(tuple(self.keys[place] for place in places), told, places)
        return self._others[places]


def _key(nodeid: str) -> Key:
    said = xml_id(nodeid)
    classname, name = split_nodeid(said)
    return Key(intern(classname), name, said)


def _check_rank(rank: int, world_size: int) -> None:
    if not 0 <= rank < world_size <= MOST_RANKS:
        msg = f"is about rank {rank} in a world of {world_size} ranks"
        raise RecordError(msg)


def _result(key: Key, ended: RankEnded, texts: dict[str, str]) -> RankResult:
    def one(text: str) -> str:
        return texts.setdefault(text, text)

    # As in rank XML, which has no element for an unexpected pass and thus no place for its text.
    told = ended.outcome is not Outcome.XPASSED
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
        message=one(cut(message)) if told else "",
        text=one(cut(readable(ended.text) or message)) if told else "",
        duration=duration(ended.seconds),
        stdout=one(cut(readable(ended.stdout))),
        stderr=one(cut(readable(ended.stderr))),
        world_size=ended.world_size,
    )


def read_journal(path: Path) -> list[RankFile]:
    """The results of each rank, by rank.

    Never raises for the content of the file: if it cannot be read any further, a last file without a rank states why,
    and the records before count. An incomplete last line was being written when the run was killed.
    """
    reader = JournalReader(path)
    try:
        with open_regular(path) as file:
            problem = _read(reader, file)
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
    return reader.files(problem)


def _read(reader: JournalReader, file: BinaryIO) -> str:
    """Reads the records of a file; returns why that failed, or an empty text."""
    number = 0
    while line := file.readline(LINE_LIMIT + 2):
        number += 1
        is_whole = line.endswith(b"\n")
        if not is_whole and len(line) <= LINE_LIMIT:
            break
        try:
            reader.take(decode(line[:-1] if is_whole else line))
        except RecordError as error:
            return f"cannot be read to its end: line {number} {error}"
    return "" if number else "is empty"

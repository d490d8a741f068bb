"""The outcome of each test in each cell now, and the changes that lead back to any earlier run.

Outcomes are codes in one array: a row for each test, a column for each cell. A run adds the places whose code it
changed, with the code before: undoing runs from the newest leads back to any of them. When a part of the tests has
enough runs, the oldest become one block, in which the changes of a place stand side by side: a test that flickers
costs two or three bits a change there. Of a file that grows too large, the oldest blocks are dropped.
"""

import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate, chain, compress, count
from operator import ne, sub
from typing import TYPE_CHECKING, Final, NamedTuple

from allranks.plugins.history.database import ABSENT, Catalogue, HistoryError, rows
from allranks.report.untrusted import LAST_MOMENT

if TYPE_CHECKING:
    import sqlite3


_STEP: Final = 255
_FULL: Final = bytes([_STEP, *range(1, 256)])
_LEVEL: Final = 6
_HEAD: Final = 8
"""Bytes with the number of steps."""

LARGEST: Final = 1 << 28
"""Bytes that any stored value may have: the file may come from a cache that others write."""


class Changes(NamedTuple):
    """Ascending places, and the value that each had before."""

    places: "array[int]"
    before: "array[int]"


def pack(places: Sequence[int], before: "array[int]") -> bytes:
    """The bytes of :class:`Changes`, in a few bits for each.

    A byte is the step to the next place; the byte 0 is a step of 255 to no place. deflate then finds what is regular:
    places chosen at random at a rate of 1 % cost 8.1 bits, within 1 % of their entropy, and places that change at
    every other run 2 to 3.
    """
    steps = b"".join(map(_step, map(sub, places, chain((-1,), places))))
    values = bytes(before.tolist()) if max(before, default=0) < 256 else before.tobytes()
    return zlib.compress(len(steps).to_bytes(_HEAD, "little") + steps + values, _LEVEL)


@lru_cache(maxsize=1 << 12)
def _step(distance: int) -> bytes:
    steps, rest = divmod(distance - 1, _STEP)
    return bytes(steps) + bytes((rest + 1,))


def unpack(packed: bytes) -> Changes:
    """Undo :func:`pack`.

    Raises:
        ValueError: The bytes are damaged.
    """
    raw = inflated(packed)
    end = _HEAD + int.from_bytes(raw[:_HEAD], "little")
    steps, rest = raw[_HEAD:end], raw[end:]
    reached = accumulate(steps.translate(_FULL), initial=-1)
    places = array("I", compress(reached, chain(b"\0", steps)))
    before = array("H", rest if len(rest) != len(places) else list(rest))
    if len(before) != len(places):
        msg = f"{len(places)} places have {len(before)} values"
        raise ValueError(msg)
    return Changes(places, before)


def deflated(values: "array[int]") -> bytes:
    """Numbers, packed: most are alike."""
    return zlib.compress(values.tobytes(), 1)


def inflated(packed: bytes) -> bytes:
    """The bytes of a stored value.

    Raises:
        ValueError: They are damaged, or more than any value of ours has.
    """
    try:
        undo = zlib.decompressobj()
        raw = undo.decompress(packed, LARGEST)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not undo.eof:
        msg = "a value is cut off, or too large"
        raise ValueError(msg)
    return raw


PART: Final = 1024
"""Tests of a part: the least that is read to answer for one of them."""

BLOCK: Final = 64
"""Runs that become one block."""

LATE: Final = 32
"""Newest runs that are in no block, at least: one that is merged late takes its place among them."""

LARGEST_FILE: Final = 48_000_000
"""Bytes beyond which the oldest blocks are dropped."""


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """A run in a history."""

    number: int  # its place among the runs by the time of their start, from 1
    id: str
    started: float
    jobs: int  # the numbers of its jobs, as bits


class Change(NamedTuple):
    """A change of an outcome at a place: the number of the run, and the code before."""

    run: int
    before: int


Outcomes = Mapping[tuple[int, int], Sequence[tuple["array[int]", "array[int]"]]]
"""The numbers of tests and their codes, by cell and suite."""


class _Later(NamedTuple):
    """A run that was undone, with the codes after it."""

    run: RecordedRun
    codes: bytes


class Timeline:
    """A history in memory; :meth:`save` writes what has changed."""

    def __init__(self, database: "sqlite3.Connection") -> None:
        self._database = database
        self.names = Catalogue(database)
        self.runs = [
            RecordedRun(number=number, id=name, started=started, jobs=int.from_bytes(jobs, "little"))
            for number, name, started, jobs in rows(
                database, "SELECT * FROM run ORDER BY number", int, str, float, bytes
            )
        ]
        if not all(0 <= run.started <= LAST_MOMENT for run in self.runs):
            msg = "a run started at no time that a calendar has"
            raise ValueError(msg)
        self._packed: list[int] = []
        self._since: list[bytes] = []
        self._read: dict[tuple[int, int, bytes], Changes] = {}
        self.now = array("H")
        self.width = len(self.names.cells)
        for width, packed, codes, since in rows(
            database, "SELECT width, packed, codes, since FROM state ORDER BY part", int, int, bytes, bytes
        ):
            self._packed.append(packed)
            self._since.append(since)
            self.now.frombytes(inflated(codes))
            if width != self.width:
                msg = f"{width} columns for {self.width} cells"
                raise ValueError(msg)
        if len(self.now) != self.width * len(self._packed) * PART:
            msg = f"{len(self.now)} outcomes of {len(self.names.tests)} tests"
            raise ValueError(msg)

    def fit(self) -> None:
        """Make room for the tests and cells that were added."""
        tests, width = -(-len(self.names.tests) // PART) * PART, len(self.names.cells)
        if width != self.width:
            wider = array("H", bytes(2 * width * (len(self.now) // self.width if self.width else 0)))
            for cell in range(self.width):
                wider[cell::width] = self.now[cell :: self.width]
            self._since = [_widened(each, self.width, width) for each in self._since]
            self.now, self.width, self._read = wider, width, {}
        self.now.frombytes(bytes(2 * (tests * width - len(self.now))))
        while len(self._packed) < tests // PART:
            self._packed.append(min(self._packed, default=0))
            self._since.append(deflated(array("I", bytes(4 * PART * width))))

    # Going back.

    def rewind(self, run_id: str, started: float) -> list[_Later]:
        """Undo the runs after a moment, and that of the same id; return those to put back, newest first.

        Raises:
            HistoryError: They are in blocks by now.
        """
        later: list[_Later] = []
        left = sum(run.id == run_id for run in self.runs)
        while self.runs and (left or self.runs[-1].started > started):
            run = self.runs.pop()
            if run.number <= max(self._packed, default=0):
                msg = f"has {BLOCK} and more runs after this one, which was not added"
                raise HistoryError(msg)
            if run.id == run_id:
                left -= 1
            else:
                later.append(_Later(run, deflated(self.now)))
            self._undo(run.number)
        return later

    def _undo(self, number: int) -> None:
        query = "SELECT part, width, changes FROM delta WHERE runs = 1 AND first = ?"
        for part, width, packed in self._database.execute(query, (number,)):
            changes = self._placed(unpack(packed), width)
            base = part * PART * self.width
            for place, before in zip(changes.places, changes.before, strict=True):
                self.now[base + place] = before
        self._database.execute("DELETE FROM delta WHERE runs = 1 AND first = ?", (number,))
        self._database.execute("DELETE FROM run WHERE number = ?", (number,))

    def _placed(self, changes: Changes, width: int, runs: int = 1) -> Changes:
        """Changes of a time with fewer cells, at their places of today."""
        if width == self.width:
            return changes
        old, new = width * runs, self.width * runs
        return Changes(array("I", [place // old * new + place % old for place in changes.places]), changes.before)

    # Going on.

    def append(self, run_id: str, started: float, outcomes: Outcomes) -> None:
        """Add a run that is newer than all others; call :meth:`fit` before."""
        after, tests_of = array("H", self.now), self.names.tests_of()
        for (cell, suite), segments in outcomes.items():
            absent = array("H", bytes(2 * len(tests_of[suite])))
            self._put(after, cell, tests_of[suite], absent)
            for numbers, codes in segments:
                self._put(after, cell, numbers, codes)
            if len(segments) > 1:  # errors of shards may have the same name
                for numbers, codes in segments:
                    bad = [self.names.codes[code].is_bad for code in codes]
                    self._put(after, cell, list(compress(numbers, bad)), array("H", compress(codes, bad)))
        jobs = sum(1 << self.names.job(*place) for place in outcomes)
        self._add(RecordedRun(number=self._next(), id=run_id, started=started, jobs=jobs), after)

    def replay(self, later: Sequence[_Later]) -> None:
        """Put back the runs that :meth:`rewind` undid."""
        tests_of = self.names.tests_of() if later else {}
        for run, packed in reversed(later):
            codes, after = array("H", inflated(packed)), array("H", self.now)
            for (cell, suite), job in self.names.jobs.items():
                if run.jobs >> job & 1:
                    own = array("H", [codes[test * self.width + cell] for test in tests_of[suite]])
                    self._put(after, cell, tests_of[suite], own)
            self._add(replace(run, number=self._next()), after)

    def _next(self) -> int:
        return self.runs[-1].number + 1 if self.runs else 1

    def _put(self, after: "array[int]", cell: int, tests: Sequence[int], codes: "array[int]") -> None:
        if tests and list(tests) == list(range(tests[0], tests[0] + len(tests))):
            after[tests[0] * self.width + cell : tests[-1] * self.width + cell + 1 : self.width] = codes
        else:
            for test, code in zip(tests, codes, strict=True):
                after[test * self.width + cell] = code

    def _add(self, run: RecordedRun, after: "array[int]") -> None:
        size = PART * self.width
        jobs = run.jobs.to_bytes(-(-run.jobs.bit_length() // 8), "little")
        self._database.execute("INSERT INTO run VALUES (?, ?, ?, ?)", (run.number, run.id, run.started, jobs))
        for part in range(len(self._packed)):
            old, new = (codes[part * size : (part + 1) * size] for codes in (self.now, after))
            if old != new:
                places = list(compress(count(), map(ne, old, new)))
                packed = pack(places, array("H", map(old.__getitem__, places)))
                self._database.execute(
                    "INSERT INTO delta VALUES (?, ?, 1, ?, ?)", (part, run.number, self.width, packed)
                )
        self.now = after
        self.runs.append(run)

    # Looking back.

    def changes_at(self, places: Iterable[int], back_to: int) -> dict[int, list[Change]]:
        """The changes at some places in the runs from a number on, the newest first."""
        size = PART * self.width
        by_part: dict[int, list[int]] = {}
        for place in places:
            by_part.setdefault(place // size, []).append(place)
        found: dict[int, list[Change]] = {}
        for part, wanted in by_part.items():
            for place, change in self._changes_in(part, {place - part * size for place in wanted}, back_to):
                found.setdefault(part * size + place, []).append(change)
        return found

    def _changes_in(self, part: int, wanted: set[int], back_to: int) -> Iterator[tuple[int, Change]]:
        query = "SELECT first, runs, width, changes FROM delta WHERE part = ? AND first + runs > ? ORDER BY first DESC"
        for first, runs, width, packed in self._database.execute(query, (part, back_to)):
            if runs == 1:
                places, codes = self._single(part, first, width, packed)
                yield from (
                    (place, Change(first, code)) for place, code in zip(places, codes, strict=True) if place in wanted
                )
                continue
            places, codes = self._placed(unpack(packed), width, runs)
            for place in wanted:
                start, end = (bisect_left(places, each * runs) for each in (place, place + 1))
                for index in range(end - 1, start - 1, -1):
                    number = first + places[index] % runs
                    if number >= back_to:
                        yield place, Change(number, codes[index])

    def _single(self, part: int, number: int, width: int, packed: bytes) -> Changes:
        """The changes of one run, which are read several times."""
        key = part, number, packed
        if key not in self._read:
            self._read[key] = self._placed(unpack(packed), width)
        return self._read[key]

    def changed_places(self, back_to: int) -> dict[int, list[int]]:
        """The places that each of the newest runs has changed, by number; those in blocks are left out."""
        found: dict[int, list[int]] = {}
        query = "SELECT part, first, width, changes FROM delta WHERE runs = 1 AND first >= ?"
        for part, number, width, packed in self._database.execute(query, (back_to,)):
            base = part * PART * self.width
            places = self._single(part, number, width, packed).places
            found.setdefault(number, []).extend([base + place for place in places])
        return found

    def run(self, number: int) -> RecordedRun | None:
        """The run with a number; None for 0."""
        return self.runs[number - 1] if number else None  # they are numbered from 1, without a gap

    def name_of(self, place: int) -> tuple[str, str, str]:
        """The cell, the suite and the node id of a place."""
        test, cell = divmod(place, self.width)
        suite, nodeid = self.names.tests[test]
        return self._cells[cell], self._suites[suite], nodeid

    def job_at(self, place: int) -> int:
        """The job of a place, as a bit; 0 if no run had it."""
        test, cell = divmod(place, self.width)
        job = self.names.jobs.get((cell, self.names.tests[test][0]))
        return 0 if job is None else 1 << job

    @cached_property
    def _cells(self) -> list[str]:
        return list(self.names.cells)

    @cached_property
    def _suites(self) -> list[str]:
        return list(self.names.suites)

    def bad_since(self, places: Iterable[int]) -> dict[int, int]:
        """The number of the run since which each of some bad places has been bad; a run without it does not count."""
        bad = [code.is_bad for code in self.names.codes]
        size = PART * self.width
        by_part: dict[int, list[int]] = {}
        for place in places:
            by_part.setdefault(place // size, []).append(place)
        found: dict[int, int] = {}
        for part, wanted in by_part.items():
            before_all = array("I", inflated(self._since[part]))
            changes = self.changes_at(wanted, self._packed[part] + 1)
            for place in wanted:
                since, code = 0, self.now[place]
                for run, before in changes.get(place, ()):
                    since = run if bad[code] else since
                    code = before
                    if code != ABSENT and not bad[code]:
                        break
                else:
                    since = before_all[place - part * size] or since
                found[place] = since
        return found

    @property
    def begins(self) -> int:
        """The number of the oldest run whose outcomes are still in the file."""
        [number] = self._database.execute("SELECT max(run) FROM begins").fetchone()
        return number or 1

    # Keeping.

    def save(self, largest: int = LARGEST_FILE) -> None:
        """Write what was added, pack old runs, and drop the oldest if the file is too large."""
        self.names.save(self._database)
        self._pack_some()
        size = PART * self.width
        for part, (packed, since) in enumerate(zip(self._packed, self._since, strict=True)):
            codes = deflated(self.now[part * size : (part + 1) * size])
            values = (part, self.width, packed, codes, since)
            self._database.execute("REPLACE INTO state VALUES (?, ?, ?, ?, ?)", values)
        while self._size() > largest and self._drop_oldest():
            pass

    def _pack_some(self) -> None:
        """Pack a few parts, so that no run has to pack all of them."""
        newest = self.runs[-1].number if self.runs else 0
        due = [part for part, packed in enumerate(self._packed) if newest - packed >= BLOCK + LATE]
        for part in due[: 1 + len(self._packed) // LATE]:
            self._pack(part)

    def _pack(self, part: int) -> None:
        size, first = PART * self.width, self._packed[part] + 1
        codes = self.now[part * size : (part + 1) * size]
        singles = self._database.execute(
            "SELECT first, width, changes FROM delta WHERE runs = 1 AND part = ? ORDER BY first DESC", (part,)
        ).fetchall()
        told: list[int] = []
        for number, width, packed in singles:
            places, before = self._placed(unpack(packed), width)
            if number - first >= BLOCK:
                for place, code in zip(places, before, strict=True):
                    codes[place] = code
            else:
                told += [
                    (place * BLOCK + number - first) << 16 | code for place, code in zip(places, before, strict=True)
                ]
        told.sort()
        self._since[part] = self._since_after(part, codes, told)
        self._packed[part] += BLOCK
        ends = (part, first + BLOCK)
        self._database.execute("DELETE FROM delta WHERE runs = 1 AND part = ? AND first < ?", ends)
        if told:
            block = pack([each >> 16 for each in told], array("H", [each & 0xFFFF for each in told]))
            values = (part, first, BLOCK, self.width, block)
            self._database.execute("INSERT INTO delta VALUES (?, ?, ?, ?, ?)", values)

    def _since_after(self, part: int, codes: "array[int]", told: Sequence[int]) -> bytes:
        """Since when each place of a part has been bad, after the changes of a block."""
        since, first = array("I", inflated(self._since[part])), self._packed[part] + 1
        bad = [code.is_bad for code in self.names.codes]
        places = [each >> 16 for each in told]
        for index, each in enumerate(places):
            place, run = divmod(each, BLOCK)
            is_last = index + 1 == len(places) or places[index + 1] // BLOCK != place
            after = codes[place] if is_last else told[index + 1] & 0xFFFF
            if bad[after]:
                since[place] = since[place] or first + run
            elif after != ABSENT:
                since[place] = 0
        return deflated(since)

    def _size(self) -> int:
        used, free, size = (
            self._database.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((used - free) * size)

    def _drop_oldest(self) -> bool:
        """Drop the oldest blocks; return False if there is none."""
        [first] = self._database.execute("SELECT min(first) FROM delta WHERE runs > 1").fetchone()
        if first is None:
            return False
        self._database.execute("DELETE FROM delta WHERE runs > 1 AND first = ?", (first,))
        self._database.execute("INSERT INTO begins VALUES (?)", (first + BLOCK,))
        return True


def _widened(since: bytes, old: int, new: int) -> bytes:
    before = array("I", inflated(since))
    after = array("I", bytes(4 * new * (len(before) // old if old else PART)))
    for cell in range(old):
        after[cell::new] = before[cell::old]
    return deflated(after)

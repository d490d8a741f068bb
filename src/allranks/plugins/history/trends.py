"""What a run changed: failures that are new, last, are fixed or flaky, by cell and by rank. And a test's past."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from allranks.errors import UsageError, counted, did_you_mean
from allranks.plugins.history.changes import MANY, SINCE
from allranks.plugins.history.database import HistoryError, rows
from allranks.report.status import Status

if TYPE_CHECKING:
    import sqlite3

WINDOW: Final = 20
"""Runs, the newest among them, in which a test is called flaky: *n of m* are of these."""

MOST_NOTED: Final = 20_000
"""Tests whose past is looked up."""

_MOST_TESTS: Final = 20
"""Tests that a text may match."""

# Tests that may be of interest: wrong now, changed in the newest run or more than once in the window, or changed there
# and once passed after a failure.
_NOTABLE: Final = """
WITH place AS (
    SELECT cell, test, max(run) AS newest, status, total(run > :first) AS recent, total(status GLOB 'f*') AS retried
    FROM change WHERE run <= :last GROUP BY cell, test
    HAVING newest = :last OR status GLOB '[FEf]*' OR recent > 1 OR (recent AND retried)
)
SELECT cell.number, test.number, suite.number, cell.id, suite.id, test.id
FROM place JOIN test ON test.number = place.test JOIN suite ON suite.number = test.suite
JOIN cell ON cell.number = place.cell JOIN job ON job.cell = cell.number AND job.suite = suite.number
WHERE job.run = :last ORDER BY test.number, cell.number LIMIT :most
"""
_PLACES_OF_TEST: Final = """
SELECT DISTINCT cell.number, test.number, suite.number, cell.id, suite.id, test.id
FROM test JOIN suite ON suite.number = test.suite JOIN job ON job.suite = suite.number
JOIN cell ON cell.number = job.cell WHERE test.number = :test ORDER BY cell.number
"""
_CHANGES: Final = """
SELECT run, status FROM change WHERE cell = :cell AND test = :test AND run <= :last ORDER BY run DESC
"""
_RUNS_OF_JOB: Final = """
SELECT run FROM job WHERE cell = :cell AND suite = :suite AND run BETWEEN :first AND :last ORDER BY run DESC
"""


class Trend(StrEnum):
    """Why a test is told of."""

    NEW = "new"
    FLAKY = "flaky"
    FAILING = "failing"
    FIXED = "fixed"


class RecordedRun(NamedTuple):
    """A run in a history."""

    started: int  # seconds since the epoch
    id: str  # empty if the run is no longer in the history

    @property
    def day(self) -> str:
        """The day on which it started, in UTC."""
        return datetime.fromtimestamp(self.started, UTC).date().isoformat()


class Place(NamedTuple):
    """A test in a cell: their numbers in the history, and their names."""

    cell: int
    test: int
    suite: int
    cell_id: str
    suite_name: str
    nodeid: str


_PLACE: Final = (int, int, int, str, str, str)


@dataclass(frozen=True, kw_only=True)
class PastOfTest:
    """A test in a cell, with its past."""

    place: Place
    trend: Trend
    bad: int  # the runs among ``of`` in which it failed, or failed before it passed
    of: int  # the runs of the window that have an outcome of it
    # The first run of an unbroken row of failures; of a fixed test, of the row that has ended. None for none.
    since: RecordedRun | None = None
    # The ranks that went wrong by themselves, with the number of these runs, most frequent first; without those in
    # which all did.
    ranks: tuple[tuple[str, int], ...] = ()

    @property
    def text(self) -> str:
        """The past in a few words: ``failing since 2026-11-20 (run x), rank 3``."""
        since, said = "", f", {self.bad} of {self.of}"
        if self.since:
            since = f" since {self.since.day}" + (f" (run {self.since.id})" if self.since.id else "")
        match self.trend:
            case Trend.NEW:
                told = "new"
            case Trend.FAILING:
                told = f"failing{since}{said if self.bad < self.of else ''}"
            case Trend.FIXED:
                told = f"fixed, failed{since}" if since else "fixed"
            case Trend.FLAKY:
                told = f"flaky{said}"
        for ranks, times in self.ranks[:1]:
            who = f"{ranks} ranks" if ranks == MANY else f"{'rank' if ranks.isdigit() else 'ranks'} {ranks}"
            told += f", {who}" + (f" in {times} of these" if times < self.bad else "")
        return told


class RecordedStatus(NamedTuple):
    """A status in a history."""

    status: Status
    ranks: str  # those that went wrong by themselves, if not all of them did


class TestLine(NamedTuple):
    """The statuses of a test in a cell."""

    place: Place
    statuses: Sequence[RecordedStatus | None]  # in each run, oldest first; None where the run did not have the job
    past: PastOfTest | None  # its trend in the newest runs; None if it is of no interest


@dataclass(frozen=True, kw_only=True)
class RunHistory:
    """What a history tells of one run."""

    path: Path
    tests: tuple[PastOfTest, ...] = ()  # those whose past is of interest
    runs: int = 0  # the runs in the file up to this one
    problem: str = ""  # one sentence if the run could not be recorded; empty if it was

    @property
    def headline(self) -> str:
        """``2 new, 1 flaky, 3 failing for longer, 4 fixed, by 37 runs``; counts are of tests in cells."""
        if self.runs < 2:
            return "this is the first run in the history" if self.runs else ""
        counts, words = Counter(test.trend for test in self.tests), {Trend.FAILING: "failing for longer"}
        told = ", ".join(f"{counts[trend]:,} {words.get(trend, trend)}" for trend in Trend if counts[trend])
        return f"{told or 'nothing is new, flaky or fixed'}, by {counted(self.runs, 'run')}"

    def told(self) -> list[tuple[str, str, str]]:
        """Past, node id and place of each test, new failures first; cells in which a test has the same past are one."""
        cells: dict[tuple[str, str, str], list[str]] = {}
        for past in sorted(self.tests, key=lambda past: [*Trend].index(past.trend)):
            place = past.place
            cells.setdefault((past.text, place.nodeid, place.suite_name), []).append(place.cell_id)
        return [(text, nodeid, f"{_some(own)} / {suite}") for (text, nodeid, suite), own in cells.items()]

    def lines(self, most: int) -> Iterator[str]:
        """The first tests, in plain text."""
        told = self.told()
        yield from (f"  {text}: {nodeid} ({place})" for text, nodeid, place in told[:most])
        if len(told) > most:
            yield f"  and {len(told) - most} more"

    def as_object(self) -> dict[str, Any]:
        """The same for programs."""
        tests = list(map(_object, self.tests))
        return {"file": str(self.path), "runs": self.runs, "problem": self.problem or None, "tests": tests}


def _some(cells: Sequence[str], most: int = 4) -> str:
    return ", ".join(cells[:most]) + (f" and {len(cells) - most} more cells" if len(cells) > most else "")


def _object(past: PastOfTest) -> Mapping[str, object]:
    return {
        "cell": past.place.cell_id,
        "suite": past.place.suite_name,
        "test": past.place.nodeid,
        "trend": past.trend.value,
        "bad": past.bad,
        "of": past.of,
        "since": past.since and {"id": past.since.id or None, "day": past.since.day},
        "ranks": dict(past.ranks),
    }


@cache
def _recorded(text: str) -> RecordedStatus:
    try:
        return RecordedStatus(Status(text[:1]), text[1:])
    except ValueError as error:
        msg = f"is damaged (it has the status {text!r:.20})"
        raise HistoryError(msg) from error


class History:
    """The runs of a history up to one of them, the newest by default; HistoryError if it has none, or is damaged."""

    def __init__(self, database: "sqlite3.Connection", last: int | None = None) -> None:
        self._database = database
        runs = rows(database, "SELECT number, id FROM run ORDER BY number", (int, str))
        self.runs = [RecordedRun(*run) for run in runs if last is None or run[0] <= last]
        self._ids: dict[int, str] = dict(self.runs)
        self._runs_of_job = cache(self._read_runs_of_job)
        if not self.runs:
            msg = "has no run yet"
            raise HistoryError(msg)

    def counts(self) -> Mapping[str, int]:
        """The number of tests and cells."""
        [counts] = rows(self._database, "SELECT (SELECT count(*) FROM test), (SELECT count(*) FROM cell)", (int, int))
        return dict(zip(("tests", "cells"), counts, strict=True))

    def newest(self, path: Path) -> RunHistory:
        """Compare the newest run with those before."""
        ends = {"first": self.runs[-WINDOW:][0].started, "last": self.runs[-1].started, "most": MOST_NOTED}
        places = (Place(*row) for row in rows(self._database, _NOTABLE, _PLACE, ends))
        return RunHistory(path=path, tests=tuple(filter(None, map(self._past, places))), runs=len(self.runs))

    def lookup(self, text: str, most_runs: int) -> tuple[Sequence[RecordedRun], list[TestLine]]:
        """The newest runs, and the statuses in them of the tests that a text means: not none, nor many."""
        runs, found = self.runs[-most_runs:], []
        for test in self._meant(text):
            for place in (Place(*row) for row in rows(self._database, _PLACES_OF_TEST, _PLACE, {"test": test})):
                told = dict(self._statuses(place, runs))
                if any(each.status is not Status.ABSENT for each in told.values()):
                    found.append(TestLine(place, [told.get(run.started) for run in runs], self._past(place)))
        return runs, found

    def _meant(self, text: str) -> list[int]:
        tests: dict[int, str] = dict(rows(self._database, "SELECT number, id FROM test ORDER BY number", (int, str)))
        found = [number for number, nodeid in tests.items() if nodeid == text]
        found = found or [number for number, nodeid in tests.items() if text in nodeid]
        if not found:
            msg = f"No test in the history has {text!r} in its id."
            raise UsageError(msg, why=did_you_mean(text, islice(tests.values(), 20_000)))
        if len(found) > _MOST_TESTS:
            some = ", ".join(tests[number] for number in found[:3])
            msg = f"{len(found)} tests have {text!r} in their id: {some}, …"
            raise UsageError(msg, remedy="Give a whole node id, or more of it.")
        return found

    def _statuses(self, place: Place, runs: Sequence[RecordedRun]) -> list[tuple[int, RecordedStatus]]:
        """The number of each of some successive runs that had the job of a test, and the test's status in it."""
        first, last = runs[0].started, runs[-1].started
        place_values = {"cell": place.cell, "test": place.test, "last": last}
        changes = rows(self._database, _CHANGES, (int, str), place_values)
        change, status, found = last + 1, "", []
        for run in self._runs_of_job(place.cell, place.suite, first, last):
            while change > run:
                change, status = next(changes, (-1, Status.ABSENT))
            found.append((run, _recorded(status)))
        return found[::-1]

    def _read_runs_of_job(self, cell: int, suite: int, first: int, last: int) -> list[int]:
        """The numbers of runs that had a suite in a cell, newest first."""
        values = {"cell": cell, "suite": suite, "first": first, "last": last}
        return [run for [run] in rows(self._database, _RUNS_OF_JOB, (int,), values)]

    def _past(self, place: Place) -> PastOfTest | None:
        """The trend of a test; None if it has none, as in the first run of all."""
        told = self._statuses(place, self.runs[-WINDOW:])
        if len(self.runs) < 2 or not told or told[-1][1].status is Status.ABSENT:
            return None
        newest, (now, _) = told[-1]
        known = [each for _, each in told if each.status is not Status.ABSENT]
        bad = [each.status.is_bad for each in known if each.status is not Status.SKIPPED]  # a skip settles no failure
        falls = sum(one > other for other, one in pairwise([False, *bad]))
        since = None
        if now.is_bad or bad[-2:-1] == [True]:
            since = self._since(place, newest if now.is_bad else newest - 1)
        if now.is_bad and since and since.started < newest:
            trend = Trend.FAILING
        elif falls > 1 or any(each.status is Status.FLAKY for each in known):
            trend = Trend.FLAKY
        elif now.is_bad:
            trend = Trend.NEW
        elif now is not Status.SKIPPED and bad[-2:-1] == [True]:
            trend = Trend.FIXED
        else:
            return None
        wrong = [each for each in known if each.status.is_bad or each.status is Status.FLAKY]
        ranks = Counter(each.ranks for each in wrong if each.ranks)
        return PastOfTest(
            place=place,
            trend=trend,
            bad=len(wrong),
            of=len(known),
            since=since if trend in {Trend.FAILING, Trend.FIXED} else None,
            ranks=tuple(sorted(ranks.items(), key=lambda each: (-each[1], each[0]))),
        )

    def _since(self, place: Place, run: int) -> RecordedRun | None:
        found = rows(self._database, SINCE, (int,), {"cell": place.cell, "test": place.test, "run": run})
        return next((RecordedRun(number, self._ids.get(number, "")) for [number] in found), None)

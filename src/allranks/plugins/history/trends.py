"""The trends of tests in a history: failures that are new, persist, are fixed or flaky, by cell and by rank."""

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
"""The number of newest runs that determine whether a test is flaky; *n of m* counts these runs."""

MOST_LISTED: Final = 20_000
"""The most tests for which a trend is computed."""

_MOST_MATCHES: Final = 20
"""The most tests that a text may match."""

# Tests that may have a trend: failed now, changed in the newest run or more than once in the window, or changed in the
# window and once passed after a failure.
_NOTABLE: Final = """
WITH latest AS (
    SELECT cell, test, max(run) AS newest, status, total(run > :first) AS recent, total(status GLOB 'f*') AS retried
    FROM change WHERE run <= :last GROUP BY cell, test
    HAVING newest = :last OR status GLOB '[FEf]*' OR recent > 1 OR (recent AND retried)
)
SELECT cell.number, test.number, suite.number, cell.id, suite.id, test.id
FROM latest JOIN test ON test.number = latest.test JOIN suite ON suite.number = test.suite
JOIN cell ON cell.number = latest.cell JOIN job ON job.cell = cell.number AND job.suite = suite.number
WHERE job.run = :last ORDER BY test.number, cell.number LIMIT :most
"""
_CELLS_OF_TEST: Final = """
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
    """Why a test is listed."""

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


class HistoricTest(NamedTuple):
    """A test in a cell: its numbers in the history, and its names."""

    cell: int
    test: int
    suite: int
    cell_id: str
    suite_name: str
    nodeid: str


_TEST_COLUMNS: Final = (int, int, int, str, str, str)


@dataclass(frozen=True, kw_only=True)
class TrendEntry:
    """A test in a cell, with its trend."""

    test: HistoricTest
    trend: Trend
    bad: int  # the number of runs among ``of`` in which it failed, at least at first
    of: int  # the number of runs of the window in which it has an outcome
    since: RecordedRun | None = None  # the first run of the current series of failures, or of the last for a fixed test
    # The ranks with primary failures and the number of runs, most frequent first, without runs in which all failed.
    ranks: tuple[tuple[str, int], ...] = ()

    @property
    def text(self) -> str:
        """The trend in a few words: ``failing since 2026-11-20 (run x), rank 3``."""
        since, rate = "", f", {self.bad} of {self.of}"
        if self.since:
            since = f" since {self.since.day}" + (f" (run {self.since.id})" if self.since.id else "")
        match self.trend:
            case Trend.NEW:
                text = "new"
            case Trend.FAILING:
                text = f"failing{since}{rate if self.bad < self.of else ''}"
            case Trend.FIXED:
                text = f"fixed, failed{since}" if since else "fixed"
            case Trend.FLAKY:
                text = f"flaky{rate}"
        for ranks, times in self.ranks[:1]:
            who = f"{ranks} ranks" if ranks == MANY else f"{'rank' if ranks.isdigit() else 'ranks'} {ranks}"
            text += f", {who}" + (f" in {times} of these" if times < self.bad else "")
        return text


class RecordedStatus(NamedTuple):
    """A status in a history."""

    status: Status
    ranks: str  # those with primary failures; empty if these are all ranks


class TestLine(NamedTuple):
    """The statuses of a test in a cell."""

    test: HistoricTest
    statuses: Sequence[RecordedStatus | None]  # in each run, oldest first; None if the run did not have the job
    trend: TrendEntry | None  # its trend in the newest runs, if it has one


@dataclass(frozen=True, kw_only=True)
class RunHistory:
    """The changes of one run."""

    path: Path
    tests: tuple[TrendEntry, ...] = ()  # only tests with a trend
    runs: int = 0  # the number of runs in the file up to this one
    problem: str = ""  # a sentence if the run could not be recorded

    @property
    def headline(self) -> str:
        """``2 new, 1 flaky, 3 failing for longer, 4 fixed; 37 runs recorded``; counts are of tests in cells."""
        if self.runs < 2:
            return "this is the first run in the history" if self.runs else ""
        counts, words = Counter(test.trend for test in self.tests), {Trend.FAILING: "failing for longer"}
        found = ", ".join(f"{counts[trend]:,} {words.get(trend, trend)}" for trend in Trend if counts[trend])
        return f"{found or 'nothing is new, flaky or fixed'}; {counted(self.runs, 'run')} recorded"

    def rows(self) -> list[tuple[str, str, str]]:
        """Trend, node id and job of each test, new failures first; cells with the same trend of a test share a row."""
        cells: dict[tuple[str, str, str], list[str]] = {}
        for entry in sorted(self.tests, key=lambda entry: [*Trend].index(entry.trend)):
            test = entry.test
            cells.setdefault((entry.text, test.nodeid, test.suite_name), []).append(test.cell_id)
        return [(text, nodeid, f"{_some(own)} / {suite}") for (text, nodeid, suite), own in cells.items()]

    def lines(self, most: int) -> Iterator[str]:
        """The first tests, in plain text."""
        rows = self.rows()
        yield from (f"  {text}: {nodeid} ({job})" for text, nodeid, job in rows[:most])
        if len(rows) > most:
            yield f"  and {len(rows) - most} more"

    def as_object(self) -> dict[str, Any]:
        """The object in ``report.json``."""
        tests = list(map(_object, self.tests))
        return {"file": str(self.path), "runs": self.runs, "problem": self.problem or None, "tests": tests}


def _some(cells: Sequence[str], most: int = 4) -> str:
    return ", ".join(cells[:most]) + (f" and {counted(len(cells) - most, 'more cell')}" if len(cells) > most else "")


def _object(entry: TrendEntry) -> Mapping[str, object]:
    return {
        "cell": entry.test.cell_id,
        "suite": entry.test.suite_name,
        "test": entry.test.nodeid,
        "trend": entry.trend.value,
        "bad": entry.bad,
        "of": entry.of,
        "since": entry.since and {"id": entry.since.id or None, "day": entry.since.day},
        "ranks": dict(entry.ranks),
    }


@cache
def _parse_status(text: str) -> RecordedStatus:
    try:
        return RecordedStatus(Status(text[:1]), text[1:])
    except ValueError as error:
        msg = f"is damaged (it has the status {text!r:.20})"
        raise HistoryError(msg) from error


class History:
    """A history up to one of its runs, by default the newest.

    Raises:
        HistoryError: It has no runs, or is damaged.
    """

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
        """Compare the newest run with those before it."""
        ends = {"first": self.runs[-WINDOW:][0].started, "last": self.runs[-1].started, "most": MOST_LISTED}
        tests = (HistoricTest(*row) for row in rows(self._database, _NOTABLE, _TEST_COLUMNS, ends))
        return RunHistory(path=path, tests=tuple(filter(None, map(self._trend, tests))), runs=len(self.runs))

    def lookup(self, text: str, most_runs: int) -> tuple[Sequence[RecordedRun], list[TestLine]]:
        """The newest runs, and the statuses in them of the tests that match a text.

        Raises:
            UsageError: It matches no test, or too many.
        """
        runs, found = self.runs[-most_runs:], []
        for number in self._matches(text):
            for row in rows(self._database, _CELLS_OF_TEST, _TEST_COLUMNS, {"test": number}):
                test = HistoricTest(*row)
                statuses = dict(self._statuses(test, runs))
                if any(recorded.status is not Status.ABSENT for recorded in statuses.values()):
                    found.append(TestLine(test, [statuses.get(run.started) for run in runs], self._trend(test)))
        return runs, found

    def _matches(self, text: str) -> list[int]:
        tests: dict[int, str] = dict(rows(self._database, "SELECT number, id FROM test ORDER BY number", (int, str)))
        found = [number for number, nodeid in tests.items() if nodeid == text]
        found = found or [number for number, nodeid in tests.items() if text in nodeid]
        if not found:
            msg = f"No test in the history has {text!r} in its id."
            raise UsageError(msg, why=did_you_mean(text, islice(tests.values(), 20_000)))
        if len(found) > _MOST_MATCHES:
            some = ", ".join(tests[number] for number in found[:3])
            msg = f"{len(found)} tests have {text!r} in their id: {some}, …"
            raise UsageError(msg, remedy="Give a complete node id, or a longer part of it.")
        return found

    def _statuses(self, test: HistoricTest, runs: Sequence[RecordedRun]) -> list[tuple[int, RecordedStatus]]:
        """A test's status in each of some successive runs that had its job, with the number of the run."""
        first, last = runs[0].started, runs[-1].started
        values = {"cell": test.cell, "test": test.test, "last": last}
        changes = rows(self._database, _CHANGES, (int, str), values)
        change, status, found = last + 1, "", []
        for run in self._runs_of_job(test.cell, test.suite, first, last):
            while change > run:
                change, status = next(changes, (-1, Status.ABSENT))
            found.append((run, _parse_status(status)))
        return found[::-1]

    def _read_runs_of_job(self, cell: int, suite: int, first: int, last: int) -> list[int]:
        """The numbers of runs that had a suite in a cell, newest first."""
        values = {"cell": cell, "suite": suite, "first": first, "last": last}
        return [run for [run] in rows(self._database, _RUNS_OF_JOB, (int,), values)]

    def _trend(self, test: HistoricTest) -> TrendEntry | None:
        """The trend of a test; None if it has none, as in the very first run."""
        statuses = self._statuses(test, self.runs[-WINDOW:])
        if len(self.runs) < 2 or not statuses or statuses[-1][1].status is Status.ABSENT:
            return None
        newest, (now, _) = statuses[-1]
        known = [recorded for _, recorded in statuses if recorded.status is not Status.ABSENT]
        # A skipped test has not been fixed.
        bad = [recorded.status.is_bad for recorded in known if recorded.status is not Status.SKIPPED]
        new_failures = sum(current > previous for previous, current in pairwise([False, *bad]))
        since = None
        if now.is_bad or bad[-2:-1] == [True]:
            since = self._since(test, newest if now.is_bad else newest - 1)
        if now.is_bad and since and since.started < newest:
            trend = Trend.FAILING
        elif new_failures > 1 or any(recorded.status is Status.FLAKY for recorded in known):
            trend = Trend.FLAKY
        elif now.is_bad:
            trend = Trend.NEW
        elif now is not Status.SKIPPED and bad[-2:-1] == [True]:
            trend = Trend.FIXED
        else:
            return None
        failures = [recorded for recorded in known if recorded.status.is_bad or recorded.status is Status.FLAKY]
        ranks = Counter(recorded.ranks for recorded in failures if recorded.ranks)
        return TrendEntry(
            test=test,
            trend=trend,
            bad=len(failures),
            of=len(known),
            since=since if trend in {Trend.FAILING, Trend.FIXED} else None,
            ranks=tuple(sorted(ranks.items(), key=lambda item: (-item[1], item[0]))),
        )

    def _since(self, test: HistoricTest, run: int) -> RecordedRun | None:
        found = rows(self._database, SINCE, (int,), {"cell": test.cell, "test": test.test, "run": run})
        return next((RecordedRun(number, self._ids.get(number, "")) for [number] in found), None)

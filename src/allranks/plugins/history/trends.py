"""What a run changed: failures that are new, last, are fixed or flaky, by cell and by rank. And a test's past."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from itertools import chain, compress, count, islice, pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from allranks.errors import UsageError, counted, did_you_mean
from allranks.plugins.history.database import MANY, Code, HistoryError, read
from allranks.plugins.history.timeline import Change, RecordedRun, Timeline

WINDOW: Final = 20
"""Runs, the newest among them, in which a test is called flaky: *n of m* are of these."""

MOST_NOTED: Final = 20_000
"""Tests whose past is looked up: more are counted as failing, and no more."""


class Trend(StrEnum):
    """Why a test is told of."""

    NEW = "new"
    FAILING = "failing"
    FIXED = "fixed"
    FLAKY = "flaky"


@dataclass(frozen=True, kw_only=True)
class PastOfTest:
    """A test in a cell, with its past."""

    cell: str
    suite: str
    nodeid: str
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
        said = f"{self.bad} of {self.of}"
        since = f" since {dated(self.since)}" if self.since else ""
        match self.trend:
            case Trend.NEW:
                told = "new"
            case Trend.FAILING:
                told = f"failing{since}" + (f", {said}" if self.bad < self.of else "")
            case Trend.FIXED:
                told = f"fixed, failed{since}" if since else "fixed"
            case Trend.FLAKY:
                told = f"flaky, {said}"
        return told + self._at_ranks()

    def _at_ranks(self) -> str:
        if not self.ranks:
            return ""
        [(ranks, times), *_] = self.ranks
        who = f"{ranks} ranks" if ranks == MANY else f"{'rank' if ranks.isdigit() else 'ranks'} {ranks}"
        return f", {who}" + (f" in {times} of these" if times < self.bad else "")


def dated(run: RecordedRun) -> str:
    """The day of a run, and its id."""
    return f"{day(run)} (run {run.id})"


def day(run: RecordedRun) -> str:
    """The day on which a run started, in UTC."""
    return datetime.fromtimestamp(run.started, UTC).date().isoformat()


@dataclass(frozen=True, kw_only=True)
class RunHistory:
    """What a history tells of one run."""

    path: Path
    tests: tuple[PastOfTest, ...] = ()  # those whose past is of interest
    runs: int = 0  # the runs in the file
    problem: str = ""  # one sentence if the run could not be recorded; empty if it was

    def past_of(self, trend: Trend) -> list[PastOfTest]:
        """The tests with one trend."""
        return [test for test in self.tests if test.trend is trend]


def transitions(line: Timeline, path: Path) -> RunHistory:
    """Compare the newest run of a history with those before."""
    runs, codes = line.runs[-WINDOW:], line.names.codes
    is_wrong = [code.is_bad or code.letter == "f" for code in codes]
    wanted = {*compress(count(), map(is_wrong.__getitem__, line.now)), *_restless(line, runs)}
    places = sorted(place for place in wanted if line.job_at(place) & runs[-1].jobs)[:MOST_NOTED]
    changes = line.changes_at(places, runs[0].number)
    since = line.bad_since(place for place in places if codes[line.now[place]].is_bad)
    covering = cache(lambda job: [run for run in runs if run.jobs & job])
    told = (past_at(line, place, covering(line.job_at(place)), changes.get(place, ()), since) for place in places)
    return RunHistory(path=path, tests=tuple(filter(None, told)), runs=len(line.runs))


def past_at(
    line: Timeline, place: int, runs: Sequence[RecordedRun], changes: Sequence[Change], since: Mapping[int, int]
) -> PastOfTest | None:
    """The trend of a test in a cell; None if it has none, as in the first run of all.

    Args:
        line: The history.
        place: The place of the test and the cell.
        runs: Those of the newest :data:`WINDOW` runs that had its job.
        changes: Its changes in these, newest first.
        since: The number of the run since which each bad place has been bad.
    """
    if not runs or len(line.runs) < 2:
        return None
    past = [line.names.codes[code] for code in codes_in(runs, line.now[place], changes)]
    found = _told(past, runs, line.run(since.get(place, 0)))
    if found is None:
        return None
    cell, suite, nodeid = line.name_of(place)
    return PastOfTest(cell=cell, suite=suite, nodeid=nodeid, **_counted(past), **found)


def _restless(line: Timeline, runs: Sequence[RecordedRun]) -> Iterator[int]:
    """Places that the newest run changed, or that changed back and forth in some runs."""
    by_run = line.changed_places(runs[0].number)
    times = Counter(chain.from_iterable(by_run.values()))
    yield from by_run.get(runs[-1].number, ())
    yield from (place for place, changes in times.items() if changes > 2)


def codes_in(runs: Sequence[RecordedRun], now: int, changes: Sequence[Change]) -> list[int]:
    """The codes of a place in some runs, given the code now, and its changes, newest first."""
    if not changes:
        return [now] * len(runs)
    found, code, left = [], now, list(reversed(changes))
    for run in reversed(runs):
        while left and left[-1].run > run.number:
            code = left.pop().before
        found.append(code)
    return found[::-1]


def _told(past: Sequence[Code], runs: Sequence[RecordedRun], since: RecordedRun | None) -> dict[str, Any] | None:
    """The trend of a test, by its outcomes in some runs; None if there is none."""
    known = [(code, run) for code, run in zip(past, runs, strict=True) if code.letter != "-"]
    if not known or known[-1][1] is not runs[-1]:
        return None
    now, ran = known[-1][0], [each for each in known if each[0].letter != "S"]  # a skip settles no failure
    bad = [code.is_bad for code, _ in ran]
    falls = sum(one > other for other, one in pairwise([False, *bad]))
    if now.is_bad and since and since.number < runs[-1].number:
        return {"trend": Trend.FAILING, "since": since}
    if falls > 1 or any(code.letter == "f" for code, _ in known):
        return {"trend": Trend.FLAKY}
    if now.is_bad:
        return {"trend": Trend.NEW}
    if bad[-2:-1] == [True] and now.letter != "S":
        first = bad.index(True)
        # A row that fills the runs that are looked at has begun before them.
        return {"trend": Trend.FIXED, "since": ran[first][1] if first else None}
    return None


def _counted(past: Sequence[Code]) -> dict[str, Any]:
    wrong = [code for code in past if code.is_bad or code.letter == "f"]
    ranks = Counter([code.ranks for code in wrong if code.ranks])
    return {
        "bad": len(wrong),
        "of": sum(code.letter != "-" for code in past),
        "ranks": tuple(sorted(ranks.items(), key=lambda each: (-each[1], each[0]))),
    }


_ORDER: Final = (Trend.NEW, Trend.FLAKY, Trend.FAILING, Trend.FIXED)
_CELLS: Final = 4


class ToldTest(NamedTuple):
    """A test with the same past in one or several cells."""

    past: PastOfTest
    cells: tuple[str, ...]

    @property
    def place(self) -> str:
        """Its suite, and its cells."""
        more = f" and {len(self.cells) - _CELLS} more cells" if len(self.cells) > _CELLS else ""
        return f"{', '.join(self.cells[:_CELLS])}{more} / {self.past.suite}"


def headline(history: RunHistory) -> str:
    """``2 new, 1 flaky, 3 failing for longer, 4 fixed, by 37 runs``; counts are of tests in cells."""
    if history.runs < 2:
        return "this is the first run in the history" if history.runs else ""
    words = {Trend.FAILING: "failing for longer"}
    counts = {trend: len(history.past_of(trend)) for trend in _ORDER}
    told = ", ".join(f"{count:,} {words.get(trend, trend)}" for trend, count in counts.items() if count)
    return f"{told or 'nothing is new, flaky or fixed'}, by {counted(history.runs, 'run')}"


def told_tests(history: RunHistory) -> list[ToldTest]:
    """The tests of interest: new failures first, and each once if its past is the same in several cells."""
    groups: dict[tuple[Trend, str, str, str], list[PastOfTest]] = {}
    for trend in _ORDER:
        for past in history.past_of(trend):
            groups.setdefault((trend, past.suite, past.nodeid, past.text), []).append(past)
    return [ToldTest(pasts[0], tuple(past.cell for past in pasts)) for pasts in groups.values()]


def as_object(history: RunHistory) -> dict[str, Any]:
    """The same for programs."""
    return {
        "file": str(history.path),
        "runs": history.runs,
        "problem": history.problem or None,
        "tests": list(map(_test, history.tests)),
    }


def _test(past: PastOfTest) -> Mapping[str, Any]:
    return {
        "cell": past.cell,
        "suite": past.suite,
        "test": past.nodeid,
        "trend": past.trend.value,
        "bad": past.bad,
        "of": past.of,
        "since": run_object(past.since) if past.since else None,
        "ranks": dict(past.ranks),
    }


def run_object(run: RecordedRun) -> dict[str, str]:
    """A run for programs."""
    return {"id": run.id, "day": day(run)}


def plain_lines(history: RunHistory, most: int) -> Iterator[str]:
    """The first tests, in plain text."""
    told = told_tests(history)
    for test in told[:most]:
        yield f"  {test.past.text}: {test.past.nodeid} ({test.place})"
    if len(told) > most:
        yield f"  and {len(told) - most} more"


_MOST_TESTS: Final = 20
"""Tests that a text may match: for more, the outcomes of each would not be read."""


@dataclass(frozen=True, kw_only=True)
class TestLine:
    """The outcomes of a test in a cell."""

    __test__ = False  # not a test class, despite its name

    cell: str
    suite: str
    nodeid: str
    codes: Sequence[Code | None]  # in each run, oldest first; None where the run did not have the job
    past: PastOfTest | None  # its trend in the newest runs; None if it is of no interest


@dataclass(frozen=True, kw_only=True)
class Overview:
    """A history without a question."""

    runs: Sequence[RecordedRun]
    begins: RecordedRun  # the oldest run whose outcomes are still in the file
    tests: int
    cells: int
    newest: RunHistory


def overview(path: Path) -> Overview:
    """What is in a history.

    Raises:
        UsageError: It cannot be read.
    """
    try:
        with read(path) as database:
            line = Timeline(database)
            begins = next((run for run in line.runs if run.number >= line.begins), line.runs[-1])
            return Overview(
                runs=line.runs,
                begins=begins,
                tests=len(line.names.tests),
                cells=line.width,
                newest=transitions(line, path),
            )
    except HistoryError as error:
        raise _unreadable(path, error) from error


def lookup(path: Path, text: str, most_runs: int) -> tuple[Sequence[RecordedRun], list[TestLine]]:
    """The newest runs, and the outcomes of a test in them, by cell.

    Args:
        path: The file of the history.
        text: A node id, or a part of the ids of some tests.
        most_runs: How many runs.

    Raises:
        UsageError: The file cannot be read, or no test is meant, or too many are.
    """
    try:
        with read(path) as database:
            line = Timeline(database)
            tests = _meant(line, text)
            runs = [run for run in line.runs if run.number >= line.begins][-most_runs:]
            return runs, _lines(line, tests, runs)
    except HistoryError as error:
        raise _unreadable(path, error) from error


def _lines(line: Timeline, tests: Sequence[int], runs: Sequence[RecordedRun]) -> list[TestLine]:
    places = [test * line.width + cell for test in tests for cell in range(line.width)]
    changes = line.changes_at(places, min(runs[0].number, line.runs[-WINDOW:][0].number))
    since = line.bad_since(place for place in places if line.names.codes[line.now[place]].is_bad)
    found = []
    for place in places:
        job = line.job_at(place)
        codes = [line.names.codes[code] for code in codes_in(runs, line.now[place], changes.get(place, ()))]
        told = [code if run.jobs & job else None for run, code in zip(runs, codes, strict=True)]
        if any(code and code.letter != "-" for code in told):
            cell, suite, nodeid = line.name_of(place)
            newest = [run for run in line.runs[-WINDOW:] if run.jobs & job]
            past = past_at(line, place, newest, changes.get(place, ()), since)
            found.append(TestLine(cell=cell, suite=suite, nodeid=nodeid, codes=told, past=past))
    return found


def _meant(line: Timeline, text: str) -> list[int]:
    ids = [nodeid for _, nodeid in line.names.tests]
    found = [number for number, nodeid in enumerate(ids) if nodeid == text]
    found = found or [number for number, nodeid in enumerate(ids) if text in nodeid]
    if not found:
        msg = f"No test in the history has {text!r} in its id."
        raise UsageError(msg, why=did_you_mean(text, islice(ids, 20_000)))
    if len(found) > _MOST_TESTS:
        some = ", ".join(ids[number] for number in found[:3])
        msg = f"{len(found)} tests have {text!r} in their id: {some}, …"
        raise UsageError(msg, remedy="Give a whole node id, or more of it.")
    return found


def _unreadable(path: Path, error: HistoryError) -> UsageError:
    remedy = "A run with --history FILE, or `allranks merge DIR --history FILE`, makes one."
    return UsageError(f"{path} cannot be read as a history: it {error}.", remedy=remedy)

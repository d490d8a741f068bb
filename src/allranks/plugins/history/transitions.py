"""What a run changed: failures that are new, last, are fixed or flaky, by cell and by rank."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from itertools import chain, compress, count, pairwise
from pathlib import Path
from typing import Any, Final

from allranks.plugins.history.catalogue import MANY, Code
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

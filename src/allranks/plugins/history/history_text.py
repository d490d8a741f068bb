"""What a history tells of a run, as lines for people and as an object for programs."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from allranks.errors import counted
from allranks.plugins.history.timeline import RecordedRun
from allranks.plugins.history.transitions import PastOfTest, RunHistory, Trend, day

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
    """The headline and the first tests, in plain text; nothing if the run could not be recorded."""
    if history.problem:
        return
    told = told_tests(history)
    yield f"History: {headline(history)}."
    for test in told[:most]:
        yield f"  {test.past.text}: {test.past.nodeid} ({test.place})"
    if len(told) > most:
        yield f"  and {len(told) - most} more"

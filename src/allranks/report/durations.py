"""What tests take: measured by runs, and kept from one to the next so that shards come out even.

Seconds are kept by suite, backend and node id. A test does different things under different backends, and skips what
another one runs for minutes; world size and init method stretch all tests of a suite about alike, and a split asks for
nothing but the proportions, so the slowest cell stands for all of a backend and the file stays small.
"""

from collections.abc import Callable, Mapping
from typing import Final

from allranks.report.judged import CellSuite, JobFacts
from allranks.report.model import Rule, TestVerdict, VerdictKind

Durations = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Seconds, by suite, backend and node id."""

DIGITS: Final = 3
"""Significant digits, but nothing below a millisecond: noise, which would make the file longer and its changes many."""

CHANGE: Final = 0.25
NOTICEABLE: Final = 0.05
"""What is known stays until a measurement differs from it by more than a quarter and by more than 0.05 s: two runs of
the same tests differ by less, and a file that is committed should change where tests have."""


class Meter:
    """What the tests of judged jobs took: the longest over the cells of a backend, in each that of the slowest rank.

    Only tests that passed or were skipped count: what failed ended early, or late. A job tells nothing where no
    test of the suite executed: its backend or its GPUs were not there.
    """

    def __init__(self, counts: Callable[[JobFacts], bool] = lambda _: True) -> None:
        self._counts = counts
        self._ran: set[tuple[str, str]] = set()
        self._found: dict[tuple[str, str, str], dict[str, float]] = {}

    def add(self, job: CellSuite) -> None:
        """Take in a job, where it counts and says what its backend is."""
        backend = job.axes.get("backend")
        if backend is None or not self._counts(job):
            return
        if job.executed:
            self._ran.add((job.cell, job.whole_suite))
        tests = self._found.setdefault((job.cell, job.whole_suite, str(backend)), {})
        for test in filter(_has_duration, job.tests):
            tests[test.nodeid] = max(tests.get(test.nodeid, 0.0), rounded(test.time))

    @property
    def durations(self) -> Durations:
        """What all jobs so far say."""
        merged: dict[str, dict[str, dict[str, float]]] = {}
        for (cell, suite, backend), tests in self._found.items():
            if (cell, suite) in self._ran:
                known = merged.setdefault(suite, {}).setdefault(backend, {})
                for test, seconds in tests.items():
                    known[test] = max(known.get(test, 0.0), seconds)
        return merged


def renewed(known: Durations, new: Durations) -> Durations:
    """What is known after a run: what it measured in the place of what was known, where that makes a difference."""
    return {
        suite: {
            backend: _renewed_tests(_of(known, suite, backend), _of(new, suite, backend))
            for backend in {**known.get(suite, {}), **new.get(suite, {})}
        }
        for suite in {**known, **new}
    }


def rounded(seconds: float) -> float:
    """Seconds as they are kept."""
    return round(float(f"{max(seconds, 0.001):.{DIGITS}g}"), 3)


def _renewed_tests(known: Mapping[str, float], new: Mapping[str, float]) -> dict[str, float]:
    changed = {test: rounded(now) for test, now in new.items() if test not in known or _differ(known[test], now)}
    return {**known, **changed}


def _differ(before: float, now: float) -> bool:
    return abs(now - before) > max(NOTICEABLE, CHANGE * before)


def _of(durations: Durations, suite: str, backend: str) -> Mapping[str, float]:
    return durations.get(suite, {}).get(backend, {})


def _has_duration(test: TestVerdict) -> bool:
    is_test = test.verdict.rule is not Rule.JOB and bool(test.ranks)
    return is_test and test.verdict.kind in {VerdictKind.PASSED, VerdictKind.SKIPPED}

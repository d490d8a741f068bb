"""Durations of tests: measured by runs, and kept in one file so that shards are even.

Seconds are stored by suite, backend and node id. A test does different work under different backends, and may skip
under one but run for minutes under another. World size and init method scale all tests of a suite about equally, and a
split needs only proportions, so the slowest cell represents all of a backend and the file stays small.

A run does not need the file: an unusable one is reported and ignored, and the shards are as even as without it.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from allranks.report.judged import CellSuite, JobSummary
from allranks.report.results import TestVerdict, VerdictKind, VerdictRule
from allranks.report.untrusted import other_schema
from allranks.user_cache import cache_folder, hold, write_atomically

Durations = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Seconds, by suite, backend and node id."""

CHANGE: Final = 0.25
NOTICEABLE: Final = 0.05
"""A stored duration stays until a measurement differs from it by more than a quarter and by more than 0.05 s: two runs
of the same tests differ by less, and a committed file should change only where tests have."""


class Meter:
    """The durations of judged tests: the longest over the cells of a backend, in each that of the slowest rank.

    Only tests that passed or were skipped count: a failed test ended early, or late. A job is ignored if no
    test of the suite executed: its backend or its GPUs were not available.
    """

    def __init__(self, counts: Callable[[JobSummary], bool] = lambda _: True) -> None:
        self._counts = counts
        self._ran: set[tuple[str, str]] = set()
        self._found: dict[tuple[str, str, str], dict[str, float]] = {}

    def add(self, job: CellSuite) -> None:
        """Add a job, if it counts and its backend is known."""
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
        """The durations from all jobs so far."""
        merged: dict[str, dict[str, dict[str, float]]] = {}
        for (cell, suite, backend), tests in self._found.items():
            if (cell, suite) in self._ran:
                known = merged.setdefault(suite, {}).setdefault(backend, {})
                for test, seconds in tests.items():
                    known[test] = max(known.get(test, 0.0), seconds)
        return merged


def renewed(known: Durations, new: Durations) -> Durations:
    """The durations after a run: its measurements replace stored durations that differ noticeably."""
    merged = {suite: {backend: dict(tests) for backend, tests in each.items()} for suite, each in known.items()}
    for suite, backends in new.items():
        for backend, tests in backends.items():
            stored = merged.setdefault(suite, {}).setdefault(backend, {})
            for test, now in tests.items():
                if test not in stored or abs(now - stored[test]) > max(NOTICEABLE, CHANGE * stored[test]):
                    stored[test] = rounded(now)
    return merged


def rounded(seconds: float) -> float:
    """Seconds as they are stored: more than three digits, or less than a millisecond, would be noise in diffs."""
    return round(float(f"{max(seconds, 0.001):.3g}"), 3)


def _has_duration(test: TestVerdict) -> bool:
    is_test = test.verdict.rule is not VerdictRule.JOB and bool(test.ranks)
    return is_test and test.verdict.kind in {VerdictKind.PASSED, VerdictKind.SKIPPED}


SCHEMA: Final = 1
ABOUT: Final = "Seconds that tests took, kept by allranks for even shards: suite, backend, test."


class DurationsError(Exception):
    """A file does not hold durations of this version of allranks; the message ends a sentence about the file."""


def read_durations(path: Path, say: Callable[[str], None]) -> Durations:
    """Read a file of durations; empty if it does not exist yet, or is unusable, which is reported."""
    try:
        return parse(_text(path))
    except DurationsError as error:
        say(f"{path} is left out: it {error}. Shards are split as if nothing were known; remove it to begin anew.")
        return {}


def keep_durations(path: Path, new: Durations, say: Callable[[str], None]) -> None:
    """Update a file with measured durations; an unusable file is reported and left unchanged."""
    if not any(tests for backends in new.values() for tests in backends.values()):
        return
    try:
        with hold(_lock_of(path)):
            before = _text(path)
            after = render(renewed(parse(before), new))
            if after != before:
                write_atomically(path, after)
    except DurationsError as error:
        say(f"{path} was not renewed by what this run took: it {error}. Remove it, and the next run makes a new one.")
    except OSError as error:
        say(f"{path} was not renewed by what this run took: {error.strerror or error}.")


def parse(text: str) -> Durations:
    """Parse the output of :func:`render`, or an empty text; DurationsError for any other."""
    if not text.strip():
        return {}
    try:
        document = json.loads(text)
        schema, seconds = document["schema"], document["seconds"]
        if schema != SCHEMA:
            msg = f"is {other_schema(schema, SCHEMA)}"
            raise DurationsError(msg)
        return {
            suite: {
                backend: {test: _checked(value) for test, value in tests.items()} for backend, tests in backends.items()
            }
            for suite, backends in seconds.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        msg = f"holds no durations of allranks ({type(error).__name__}: {error})"
        raise DurationsError(msg) from error


def render(durations: Durations) -> str:
    """The text of the file: sorted, one test per line, so that a diff shows only tests that changed."""
    document = {"about": ABOUT, "schema": SCHEMA, "seconds": durations}
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def _checked(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        msg = f"{value!r} is no number of seconds"
        raise ValueError(msg)
    return float(value)


def _text(path: Path) -> str:
    """The content of the file; empty if there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        msg = f"cannot be read ({error})"
        raise DurationsError(msg) from error


def _lock_of(path: Path) -> Path:
    """A lock file in the user's cache: one beside the durations would stay forever, and be committed."""
    import hashlib  # noqa: PLC0415 - OpenSSL takes 4 MB, and few reports need it

    folder = cache_folder() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"durations-{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]}"

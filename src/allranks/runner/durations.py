"""Durations of tests, measured by runs and stored in one file, so that shards take equally long.

Seconds are stored by suite, backend and node id. A test does different work with different backends: it may be skipped
with one and run for minutes with another. World size and init method scale all tests of a suite about equally, and a
split needs only proportions, so the slowest cell represents all cells of a backend, and the file stays small.

A run does not need the file: an unusable one is reported and ignored.
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
"""A stored duration is replaced if a measurement differs by more than a quarter and by more than 0.05 s. Two runs of
the same tests differ by less, and the file, which may be committed, should change only where tests have changed."""


class Meter:
    """Collects the duration of each test: the slowest rank in the slowest cell of a backend counts.

    Only tests that passed or were skipped count: a failed test ended early or late. A job is ignored if no test of the
    suite executed, since its backend or its GPUs were not available.

    Args:
        counts: Whether a job is measured.
    """

    def __init__(self, counts: Callable[[JobSummary], bool] = lambda _: True) -> None:
        self._counts = counts
        self._ran: set[tuple[str, str]] = set()
        self._found: dict[tuple[str, str, str], dict[str, float]] = {}

    def add(self, job: CellSuite) -> None:
        """Add a job if it is measured and its backend is known."""
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
        """The durations of all jobs so far."""
        merged: dict[str, dict[str, dict[str, float]]] = {}
        for (cell, suite, backend), tests in self._found.items():
            if (cell, suite) in self._ran:
                known = merged.setdefault(suite, {}).setdefault(backend, {})
                for test, seconds in tests.items():
                    known[test] = max(known.get(test, 0.0), seconds)
        return merged


def update(known: Durations, new: Durations) -> Durations:
    """The stored durations after a run: its measurements replace stored ones that differ noticeably."""
    merged = {suite: {backend: dict(tests) for backend, tests in backends.items()} for suite, backends in known.items()}
    for suite, backends in new.items():
        for backend, tests in backends.items():
            stored = merged.setdefault(suite, {}).setdefault(backend, {})
            for test, now in tests.items():
                if test not in stored or abs(now - stored[test]) > max(NOTICEABLE, CHANGE * stored[test]):
                    stored[test] = rounded(now)
    return merged


def rounded(seconds: float) -> float:
    """Seconds as they are stored: three digits, in whole milliseconds (at least one); more would be noise in diffs."""
    return round(float(f"{max(seconds, 0.001):.3g}"), 3)


def _has_duration(test: TestVerdict) -> bool:
    is_test = test.verdict.rule is not VerdictRule.JOB and bool(test.ranks)
    return is_test and test.verdict.kind in {VerdictKind.PASSED, VerdictKind.SKIPPED}


SCHEMA: Final = 1
ABOUT: Final = "Seconds that tests took, stored by allranks to balance shards: suite, backend, test."


class DurationsError(Exception):
    """A file has no durations of this version of allranks; the message is a predicate whose subject is the file."""


def read_durations(path: Path, say: Callable[[str], None]) -> Durations:
    """Read a file of durations; empty if it does not exist or is unusable, which is reported."""
    try:
        return parse(_text(path))
    except DurationsError as error:
        say(f"{path} is ignored: it {error}. Suites are split without durations. Remove the file to start a new one.")
        return {}


def keep_durations(path: Path, new: Durations, say: Callable[[str], None]) -> None:
    """Update a file with measured durations; an unusable file is reported and not changed."""
    if not any(tests for backends in new.values() for tests in backends.values()):
        return
    try:
        with hold(_lock_of(path)):
            before = _text(path)
            after = render(update(parse(before), new))
            if after != before:
                write_atomically(path, after)
    except DurationsError as error:
        say(f"{path} was not updated with the durations of this run: it {error}. Remove it to start a new one.")
    except OSError as error:
        say(f"{path} was not updated with the durations of this run: {error.strerror or error}.")


def parse(text: str) -> Durations:
    """Parse the output of :func:`render`, or an empty text; any other is a DurationsError."""
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
        msg = f"is not a file of durations ({type(error).__name__}: {error})"
        raise DurationsError(msg) from error


def render(durations: Durations) -> str:
    """The text of the file: sorted, one test per line, so that a diff shows only changed tests."""
    document = {"about": ABOUT, "schema": SCHEMA, "seconds": durations}
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def _checked(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        msg = f"{value!r} is not a number of seconds"
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
    """A lock file in the user's cache: one in the repository would never be removed, and might be committed."""
    import hashlib  # noqa: PLC0415 - OpenSSL takes 4 MB of memory, and few reports need it

    folder = cache_folder() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"durations-{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]}"

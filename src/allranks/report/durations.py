"""Durations of tests: measured by runs, and kept in one file so that shards are even.

Seconds are kept by suite, backend and node id. A test does different things under different backends, and skips what
another one runs for minutes; world size and init method stretch all tests of a suite about alike, and a split asks for
nothing but the proportions, so the slowest cell stands for all of a backend and the file stays small.

A run does not need the file: one that cannot be used is said and left alone, and the shards are as even as without it.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from allranks.report.judged import CellSuite, JobSummary
from allranks.report.results import TestVerdict, VerdictKind, VerdictRule
from allranks.user_cache import cache_folder, hold

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

    def __init__(self, counts: Callable[[JobSummary], bool] = lambda _: True) -> None:
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
    is_test = test.verdict.rule is not VerdictRule.JOB and bool(test.ranks)
    return is_test and test.verdict.kind in {VerdictKind.PASSED, VerdictKind.SKIPPED}


SCHEMA: Final = 1
ABOUT: Final = "Seconds that tests took, kept by allranks for even shards: suite, backend, test."


class DurationsError(Exception):
    """A file that holds no durations of this version of allranks; the message ends a sentence about it."""


def read_durations(path: Path, say: Callable[[str], None]) -> Durations:
    """What a file knows; nothing where there is none yet, and where it cannot be used, which is said."""
    try:
        return parse(_text(path))
    except DurationsError as error:
        say(f"{path} is left out: it {error}. Shards are split as if nothing were known; remove it to begin anew.")
        return {}


def keep_durations(path: Path, new: Durations, say: Callable[[str], None]) -> None:
    """Renew a file by what was measured; a file that is not ours is left alone, which is said.

    Args:
        path: The file, which may not be there yet, in a folder that is.
        new: What was measured.
        say: Prints one line.
    """
    if not any(tests for backends in new.values() for tests in backends.values()):
        return
    try:
        with hold(_lock_of(path)):
            before = _text(path)
            after = render(renewed(parse(before), new))
            if after != before:
                _write(path, after)
    except DurationsError as error:
        say(f"{path} was not renewed by what this run took: it {error}. Remove it, and the next run makes a new one.")
    except OSError as error:
        say(f"{path} was not renewed by what this run took: {error.strerror or error}.")


def parse(text: str) -> Durations:
    """What :func:`render` has made; empty for an empty text.

    Raises:
        DurationsError: The text is something else.
    """
    if not text.strip():
        return {}
    try:
        document = json.loads(text)
        schema, seconds = document["schema"], document["seconds"]
        if not isinstance(schema, int) or schema > SCHEMA:
            msg = "was written by a newer version of allranks"
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
    """The text of the file: sorted, a test a line, so that two versions of it differ where tests do."""
    document = {"about": ABOUT, "schema": SCHEMA, "seconds": durations}
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def _checked(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        msg = f"{value!r} is no number of seconds"
        raise ValueError(msg)
    return float(value)


def _text(path: Path) -> str:
    """What the file says; empty where there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        msg = f"cannot be read ({error})"
        raise DurationsError(msg) from error


def _lock_of(path: Path) -> Path:
    """A file of this user's for the lock: one beside the durations would be there for ever, and be committed."""
    folder = cache_folder() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"durations-{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]}"


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)

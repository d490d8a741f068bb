"""The baseline: how many tests of each suite should execute in each cell.

Skips alone never fail a suite, even if no test executes. A baseline detects this: a small file that a user commits,
with the number of tests that executed in a good run. If fewer execute in a later run, the suite has an error. More
tests are no error, nor is a drop with a known cause: tests that ``-k`` deselected or that did not run because of
``-x``, a job that already has errors, or a shard whose other shards are missing.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

from allranks.errors import ExitCode, ResultsError, UsageError
from allranks.protocol.grouping import by_key
from allranks.report.judged import CellSuite, JobSummary, SuiteRow, job_error
from allranks.report.results import VerdictRule
from allranks.report.untrusted import other_schema, parsed
from allranks.user_cache import write_atomically

Baseline = Mapping[str, Mapping[str, int]]
"""Executed tests, by cell and suite."""

SCHEMA: Final = 1
ABOUT: Final = "Numbers of executed tests by cell and suite, for allranks. If fewer execute in a later run, it fails."


@dataclass
class _Document:
    schema: int
    executed: Mapping[Annotated[str, str], Mapping[Annotated[str, str], int]]


class BaselineCheck:
    """Compares the jobs of a run with the baseline, one after the other."""

    def __init__(self, baseline: Baseline) -> None:
        self._baseline = baseline
        self._executed: dict[tuple[str, str], dict[str, int]] = {}
        self._explained: set[tuple[str, str]] = set()

    def checked(self, job: CellSuite) -> CellSuite:
        """The job, with an error added if it is the last of its suite and fewer tests executed than in the baseline."""
        key = (job.cell, job.whole_suite)
        expected = self._baseline.get(job.cell, {}).get(job.whole_suite)
        if expected is None:
            return job
        executed = self._executed.setdefault(key, {})
        executed[job.suite] = job.executed
        if job.deselected or any(test.verdict.rule is VerdictRule.JOB for test in job.tests):
            self._explained.add(key)
        if key in self._explained or not _is_whole(job, executed) or sum(executed.values()) >= expected:
            return job
        text = (
            f"Fewer tests executed than in the baseline: {sum(executed.values())} instead of {expected}.\n"
            "The others were skipped, or no longer exist.\n"
            "Find out why; if it is intended, update the baseline: allranks report FOLDER --update-baseline FILE"
        )
        return replace(job, tests=(job_error("baseline", text, ExitCode.TESTS_FAILED), *job.tests))

    def missing_suites(self) -> Iterator[CellSuite]:
        """An error for each suite in the baseline that no job has run; for results without a plan."""
        for cell, suite in ((cell, suite) for cell, suites in self._baseline.items() for suite in suites):
            if (cell, suite) not in self._executed:
                text = (
                    "The baseline has this suite, but the results do not.\n"
                    "If the suite was removed, remove it from the baseline."
                )
                yield CellSuite(cell=cell, suite=suite, tests=(job_error("baseline", text),))


def read_baseline(path: Path) -> Baseline:
    """Read a baseline file; UsageError if it is not one."""
    try:
        return _executed(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        msg = f"{path} is not a baseline."
        why = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        remedy = "Create one from a good run: allranks report results/latest --update-baseline FILE"
        raise UsageError(msg, why=f"{why}.", remedy=remedy) from error


def _executed(text: str) -> Baseline:
    document = parsed(_Document, json.loads(text))
    if document.schema != SCHEMA:
        msg = f"it is {other_schema(document.schema, SCHEMA)}"
        raise ValueError(msg)
    return document.executed


def updated_baseline(baseline: Baseline, rows: Iterable[SuiteRow]) -> Baseline:
    """The baseline after a run: new counts for suites without failures, and all others unchanged."""
    suites = by_key(((row.cell, row.whole_suite), row) for row in rows)
    updated = {cell: dict(counts) for cell, counts in baseline.items()}
    for (cell, suite), shards in suites.items():
        names = {row.suite for row in shards}
        if all(_is_whole(row, names) and not (row.counts.bad or row.deselected) for row in shards):
            updated.setdefault(cell, {})[suite] = sum(row.executed for row in shards)
    return updated


def update_baseline(path: Path, rows: Iterable[SuiteRow]) -> None:
    """Update or create the file from the suites of a run that had no failures."""
    baseline = read_baseline(path) if path.exists() else {}
    try:
        document = {"about": ABOUT, "schema": SCHEMA, "executed": updated_baseline(baseline, rows)}
        write_atomically(path, json.dumps(document, indent=1, sort_keys=True) + "\n")
    except OSError as error:
        msg = f"The baseline {path} cannot be written."
        raise ResultsError(msg, why=f"{error.strerror}.", remedy="Name a file in an existing folder.") from error


def _is_whole(job: JobSummary, seen: Collection[str]) -> bool:
    return job.share is None or all(name in seen for name in job.share.all_names)

"""How many tests of each suite executed in each cell when all was well: fewer is an error.

A suite in which every test is skipped is green. The baseline is a small file that a user commits: it holds the number
of tests that executed, and a later run in which fewer do has an error in the suite concerned. More is not an error, nor
is a drop with a known cause: tests left out by the user's own ``-k`` or stopped by ``-x``, a job that already has
errors, a shard without its siblings.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

from allranks.errors import ExitCode, ResultsError, UsageError
from allranks.report.judged import CellSuite, JobSummary, SuiteRow, trouble
from allranks.report.results import VerdictRule
from allranks.report.untrusted import other_schema, parsed
from allranks.user_cache import write_atomically

Baseline = Mapping[str, Mapping[str, int]]
"""Executed tests, by cell and suite."""

SCHEMA: Final = 1
ABOUT: Final = "Tests that executed, kept for allranks: cell, suite. Fewer in a later run are an error there."


@dataclass
class _Document:
    schema: int
    executed: Mapping[Annotated[str, str], Mapping[Annotated[str, str], int]]


class BaselineWatch:
    """Compares the jobs of a run with the baseline, one after the other."""

    def __init__(self, baseline: Baseline) -> None:
        self._baseline = baseline
        self._executed: dict[tuple[str, str], dict[str, int]] = {}
        self._explained: set[tuple[str, str]] = set()

    def checked(self, job: CellSuite) -> CellSuite:
        """The job, with an error added if it is the last of its suite and fewer tests executed than in the baseline."""
        place = (job.cell, job.whole_suite)
        wanted = self._baseline.get(job.cell, {}).get(job.whole_suite)
        if wanted is None:
            return job
        executed = self._executed.setdefault(place, {})
        executed[job.suite] = job.executed
        if job.deselected or any(test.verdict.rule is VerdictRule.JOB for test in job.tests):
            self._explained.add(place)
        if place in self._explained or not _is_whole(job, executed) or sum(executed.values()) >= wanted:
            return job
        text = (
            f"{sum(executed.values())} tests executed, and the baseline has {wanted}.\n"
            "They are skipped now, or no longer exist.\n"
            "Find out why; if it is intended, update the baseline: allranks report FOLDER --update-baseline FILE"
        )
        return replace(job, tests=(trouble("baseline", text, ExitCode.TESTS_FAILED), *job.tests))

    def absent(self) -> Iterator[CellSuite]:
        """An error for each suite of the baseline that none of the jobs was of; for results without a plan."""
        for cell, suite in ((cell, suite) for cell, suites in self._baseline.items() for suite in suites):
            if (cell, suite) not in self._executed:
                text = "The baseline has this suite, and the results do not.\nIf it is gone for good, remove it there."
                yield CellSuite(cell=cell, suite=suite, tests=(trouble("baseline", text),))


def read_baseline(path: Path) -> Baseline:
    """Read a baseline file; UsageError for any other file."""
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


def renewed_baseline(known: Baseline, rows: Iterable[SuiteRow]) -> Baseline:
    """The baseline after a run: new counts for good suites, and all others unchanged."""
    whole: dict[tuple[str, str], list[SuiteRow]] = {}
    for row in rows:
        whole.setdefault((row.cell, row.whole_suite), []).append(row)
    after = {cell: dict(suites) for cell, suites in known.items()}
    for (cell, suite), shards in whole.items():
        names = {row.suite for row in shards}
        if all(_is_whole(row, names) and not (row.counts.bad or row.deselected) for row in shards):
            after.setdefault(cell, {})[suite] = sum(row.executed for row in shards)
    return after


def update_baseline(path: Path, rows: Iterable[SuiteRow]) -> None:
    """Update the file, or create it, from the good suites of a run."""
    known = read_baseline(path) if path.exists() else {}
    try:
        document = {"about": ABOUT, "schema": SCHEMA, "executed": renewed_baseline(known, rows)}
        write_atomically(path, json.dumps(document, indent=1, sort_keys=True) + "\n")
    except OSError as error:
        msg = f"The baseline {path} cannot be written."
        raise ResultsError(msg, why=f"{error.strerror}.", remedy="Name a file in an existing folder.") from error


def _is_whole(job: JobSummary, seen: Collection[str]) -> bool:
    return job.share is None or all(name in seen for name in job.share.all_names)

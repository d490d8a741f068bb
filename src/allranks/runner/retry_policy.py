"""The selection for retries: jobs, and the tests of each."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from allranks.matrix.model import Job
from allranks.report.folder import Attempt, newest, read_attempts_at
from allranks.report.judge.accounting import has_collected_nothing, has_file_errors
from allranks.report.judge.attempts import final_verdicts, has_no_result, has_not_run
from allranks.report.judge.judging import files_of
from allranks.report.judge.rules import VerdictPolicy
from allranks.report.results import TestVerdict
from allranks.runner.request import Pdb

Wanted = Literal["failed", "missing"]
"""Which tests run again: all that are not good, or only those without a result of their own."""

_ENDED_IN_TIME: Final = frozenset({"timeout", "interrupted", "stopped"})
"""Errors of jobs whose tests so far have sound results."""


@dataclass(frozen=True, kw_only=True)
class Again:
    """Which part of a job runs again."""

    tests: tuple[str, ...] | None = None  # Node ids; None for the whole job
    base: int = 0  # the number of the attempt that has the other tests; 0 where the whole job runs


WHOLE: Final = Again()
"""The whole job."""


def newest_attempt(run: Path, job: Job) -> Attempt | None:
    """The newest attempt at a job in a run's folder; None where there is none."""
    attempts = list(read_attempts_at(run, job.cell.id, job.name))
    return newest(attempts) if attempts else None


def to_run_again(attempt: Attempt | None, setting: VerdictPolicy, wanted: Wanted) -> Again | None:
    """Which part of a job has to run again; None for nothing.

    If the job itself went wrong, the results of its tests are unknown, and all of it runs again. If it ran out of time,
    or was ended, its tests so far stand. All of it also runs again if its files cannot be trusted, or if nothing was
    collected.
    """
    if attempt is None or attempt.record is None or attempt.problem:
        return WHOLE
    error = attempt.record.error
    if error and error.kind == "collection" and wanted == "missing":
        # Not the missing tests alone: those of the broken module have no names that an attempt could select.
        tests = final_verdicts(attempt, files_of(attempt), setting) if attempt.record.collected else ()
        return WHOLE if any(map(has_not_run, tests)) else None
    if error and (error.kind not in _ENDED_IN_TIME or attempt.record.collected is None):
        return WHOLE
    files = files_of(attempt)
    if has_collected_nothing(attempt) or has_file_errors(files):
        return WHOLE
    left = [test.nodeid for test in final_verdicts(attempt, files, setting) if _is_wanted(test, wanted)]
    if not left and error:
        return WHOLE  # all tests of the ended job have results: only another attempt can show that the job is good
    return Again(tests=tuple(left), base=attempt.number) if left else None


def _is_wanted(test: TestVerdict, wanted: Wanted) -> bool:
    return has_not_run(test) or (test.verdict.is_bad and (wanted == "failed" or has_no_result(test)))


_NEVER_RETRIED: Final = frozenset({"collection", "usage"})
"""Kinds of job errors that every attempt would repeat."""


@dataclass(frozen=True, kw_only=True)
class RunPolicy:
    """How the jobs of a run are ordered, limited and retried."""

    most: int | None = None  # jobs that may run at a time; None for as many as fit
    # How often a job may be tried again for tests that went wrong, and as often for the infrastructure.
    retries: int = 0
    fail_fast: bool = False  # whether the run ends with the first job that is not good
    # The seed for the order of jobs, and of the tests of each; None for the order that ends soonest.
    shuffle: int | None = None
    # How the results of a job are judged, for `retries` and `fail_fast`.
    judges: VerdictPolicy = field(default_factory=lambda: VerdictPolicy(skip="skip"))
    seconds: float | None = None  # how long the run may take; None for no limit
    pdb: Pdb | None = None
    # The plug-ins that take part in jobs, each with its own settings of JSON types.
    plugins: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class RetryPolicy:
    """Grants retries to the jobs of a run.

    Args:
        retries: How often a job may be retried for tests that went wrong. Infrastructure errors have as many of their
            own: a job that had a sick GPU keeps its retries for flaky tests.
        selections: The tests of the first attempt at a job, by the job's id; a job that is not in it runs whole.
    """

    def __init__(self, retries: int, selections: Mapping[str, Again]) -> None:
        self._retries = retries
        self._selections = dict(selections)
        self._used: Counter[tuple[str, bool]] = Counter()

    def selection(self, job_id: str) -> Again:
        """The tests of the next attempt at a job."""
        return self._selections.get(job_id, WHOLE)

    def retry(self, job_id: str, left: Again, error_kind: str = "") -> str | None:
        """Let the next attempt at a job run the rest of it, unless its retries are used up.

        Returns:
            The retry in words, such as ``retrying 2 tests (1 of 3)``; None if there is none.
        """
        budget = (job_id, error_kind == "infrastructure")
        if error_kind in _NEVER_RETRIED or self._used[budget] >= self._retries:
            return None
        self._used[budget] += 1
        self._selections[job_id] = left
        count = 0 if left.tests is None else len(left.tests)
        what = f"{count} test{'s' if count > 1 else ''}" if count else "the whole job"
        return f"retrying {what} ({self._used[budget]} of {self._retries})"

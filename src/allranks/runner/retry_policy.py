"""Which jobs run again, and which tests of each."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from allranks.matrix.model import Job
from allranks.report.folder import Attempt, newest, read_attempts_at
from allranks.report.judge.accounting import has_collected_nothing, has_file_errors
from allranks.report.judge.attempts import final_verdicts, has_no_result, was_not_reached
from allranks.report.judge.judging import files_of
from allranks.report.judge.rules import VerdictPolicy
from allranks.report.results import TestVerdict
from allranks.runner.request import Pdb

RerunScope = Literal["failed", "missing"]
"""Which tests run again: ``failed`` means those that failed or have no result, ``missing`` only the latter."""

_STOPPED_EARLY: Final = frozenset({"timeout", "interrupted", "stopped"})
"""Job errors that leave earlier test results valid."""


@dataclass(frozen=True, kw_only=True)
class JobSelection:
    """The part of a job that an attempt runs."""

    tests: tuple[str, ...] | None = None  # node ids; None for the whole job
    base: int = 0  # the number of the attempt with the results of the other tests; 0 for the whole job


WHOLE_JOB: Final = JobSelection()


def newest_attempt(run: Path, job: Job) -> Attempt | None:
    """The newest attempt at a job in a run's folder, if any."""
    attempts = list(read_attempts_at(run, job.cell.id, job.name))
    return newest(attempts) if attempts else None


def select_rerun(attempt: Attempt | None, policy: VerdictPolicy, scope: RerunScope) -> JobSelection | None:
    """The part of a job that has to run again; None if nothing has to.

    The whole job runs again if the job itself failed, if its files cannot be trusted, or if it collected nothing. If it
    timed out or was stopped, the results of its tests so far remain valid.
    """
    if attempt is None or attempt.record is None or attempt.problem:
        return WHOLE_JOB
    error = attempt.record.error
    if error and error.kind == "collection" and scope == "missing":
        # The tests of the broken module have no known node ids, so an attempt cannot select the missing tests alone.
        tests = final_verdicts(attempt, files_of(attempt), policy) if attempt.record.collected else ()
        return WHOLE_JOB if any(map(was_not_reached, tests)) else None
    if error and (error.kind not in _STOPPED_EARLY or attempt.record.collected is None):
        return WHOLE_JOB
    files = files_of(attempt)
    if has_collected_nothing(attempt) or has_file_errors(files):
        return WHOLE_JOB
    selected = [test.nodeid for test in final_verdicts(attempt, files, policy) if _is_in_scope(test, scope)]
    if not selected and error:
        return WHOLE_JOB  # every test has a result, but only another attempt can show that the job ends without error
    return JobSelection(tests=tuple(selected), base=attempt.number) if selected else None


def _is_in_scope(test: TestVerdict, scope: RerunScope) -> bool:
    return was_not_reached(test) or (test.verdict.is_bad and (scope == "failed" or has_no_result(test)))


_NEVER_RETRIED: Final = frozenset({"collection", "usage"})
"""Kinds of job errors that every attempt would repeat."""


@dataclass(frozen=True, kw_only=True)
class RunPolicy:
    """How the jobs of a run are ordered, limited and retried."""

    most: int | None = None  # the maximum number of concurrent jobs; None for as many as fit
    retries: int = 0  # retries of a job for failed tests, and as many for infrastructure errors
    fail_fast: bool = False  # whether the first failed job ends the run
    shuffle: int | None = None  # the seed for the order of jobs and of their tests; None for longest first
    verdict_policy: VerdictPolicy = field(default_factory=lambda: VerdictPolicy(skip="skip"))
    seconds: float | None = None  # the time limit of the run
    pdb: Pdb | None = None
    selection_file: str = ""  # see AgentConfig.selection_file
    plugins: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # see AgentConfig.plugins


class RetryPolicy:
    """Grants retries to the jobs of a run.

    Args:
        retries: How often a job may be retried for failed tests, and, counted separately, for infrastructure errors:
            after an unhealthy GPU, a job still has its retries for flaky tests.
        selections: What the first attempt at a job runs, by job id; other jobs run as a whole.
    """

    def __init__(self, retries: int, selections: Mapping[str, JobSelection]) -> None:
        self._retries = retries
        self._selections = dict(selections)
        self._used: Counter[tuple[str, bool]] = Counter()

    def selection(self, job_id: str) -> JobSelection:
        """What the next attempt at a job runs."""
        return self._selections.get(job_id, WHOLE_JOB)

    def retry(self, job_id: str, selection: JobSelection, error_kind: str = "") -> str | None:
        """Schedule another attempt at a job, unless its retries are used up.

        Returns:
            A message such as ``retrying 2 tests (1 of 3)``; None without a retry.
        """
        budget = (job_id, error_kind == "infrastructure")
        if error_kind in _NEVER_RETRIED or self._used[budget] >= self._retries:
            return None
        self._used[budget] += 1
        self._selections[job_id] = selection
        count = 0 if selection.tests is None else len(selection.tests)
        what = f"{count} test{'s' if count > 1 else ''}" if count else "the whole job"
        return f"retrying {what} ({self._used[budget]} of {self._retries})"

"""How the jobs of a run follow each other, and which of them are tried again: pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from allranks.report.verdict import Setting
from allranks.schedule.again import WHOLE, Again
from allranks.schedule.request import Pdb

_NEVER_RETRIED: Final = frozenset({"collection", "usage"})
"""Kinds of job errors that every attempt would repeat."""


@dataclass(frozen=True, kw_only=True)
class RunPolicy:
    """How the jobs of a run follow each other.

    Attributes:
        most: Jobs that may run at a time; None for as many as fit.
        retries: How often a job may be tried again for tests that went wrong, and as often for the infrastructure.
        fail_fast: Whether the run ends with the first job that is not good.
        shuffle: The seed for the order of jobs, and of the tests of each; None for the order that ends soonest.
        judges: How the results of a job are judged, for `retries` and `fail_fast`.
        seconds: How long the run may take; None for no limit.
        pdb: Where a debugger is wanted; None for nowhere.
    """

    most: int | None = None
    retries: int = 0
    fail_fast: bool = False
    shuffle: int | None = None
    judges: Setting = field(default_factory=lambda: Setting(skip="skip"))
    seconds: float | None = None
    pdb: Pdb | None = None


class RetryPolicy:
    """Grants retries to the jobs of a run.

    Args:
        retries: How often a job may be retried for tests that went wrong. Infrastructure errors have as many of their
            own: a job that had a sick GPU keeps its retries for flaky tests.
        selections: What the first attempt at a job runs, by the job's id; all of a job that is not in it.
    """

    def __init__(self, retries: int, selections: Mapping[str, Again]) -> None:
        self._retries = retries
        self._selections = dict(selections)
        self._used: Counter[tuple[str, bool]] = Counter()

    def selection(self, job_id: str) -> Again:
        """What the next attempt at a job runs."""
        return self._selections.get(job_id, WHOLE)

    def retry(self, job_id: str, left: Again, error_kind: str = "") -> str | None:
        """Have the next attempt at a job run what is left of it, unless its retries are used up.

        Args:
            job_id: The job.
            left: What of it has to run again.
            error_kind: The kind of its error as a whole; empty if only tests went wrong.

        Returns:
            The retry in words, such as ``2 tests again (1 of 3)``; None if there is none.
        """
        budget = (job_id, error_kind == "infrastructure")
        if error_kind in _NEVER_RETRIED or self._used[budget] >= self._retries:
            return None
        self._used[budget] += 1
        self._selections[job_id] = left
        count = 0 if left.tests is None else len(left.tests)
        what = f"{count} test{'s' if count > 1 else ''}" if count else "the whole job"
        return f"{what} again ({self._used[budget]} of {self._retries})"

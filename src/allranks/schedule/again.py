"""What of a job has to run again: all of it, the tests that went wrong or have no result, or nothing."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from allranks.matrix.model import Job
from allranks.report.accounting import files_of, has_collected_nothing, has_troubled_files
from allranks.report.folder import Attempt, newest, read_attempts_at
from allranks.report.history import has_no_result, has_not_run, settled
from allranks.report.model import TestVerdict
from allranks.report.verdict import Setting

Wanted = Literal["failed", "missing"]
"""Which tests run again: all that are not good, or those alone that have no result of their own."""

_ENDED_IN_TIME: Final = frozenset({"timeout", "interrupted", "stopped"})
"""Errors of jobs whose tests so far have sound results."""


@dataclass(frozen=True, kw_only=True)
class Again:
    """What of a job runs again.

    Attributes:
        tests: Node ids; None for the whole job.
        base: The number of the attempt that has the other tests; 0 where the whole job runs.
    """

    tests: tuple[str, ...] | None = None
    base: int = 0


WHOLE: Final = Again()
"""The whole job."""


def newest_attempt(run: Path, job: Job) -> Attempt | None:
    """The newest attempt at a job in a run's folder; None where there is none."""
    attempts = list(read_attempts_at(run, job.cell.id, job.name))
    return newest(attempts) if attempts else None


def to_run_again(attempt: Attempt | None, setting: Setting, wanted: Wanted) -> Again | None:
    """What of a job has to run again; None for nothing.

    Where the job itself went wrong, it is not known what its tests would have come to, and all of it runs again;
    unless it ran out of time, or was ended: then its tests so far stand. All of it runs again, too, where its files
    cannot be trusted, or where nothing was collected.

    Args:
        attempt: The newest; None where there is none.
        setting: How skips are read.
        wanted: Which tests.
    """
    if attempt is None or attempt.record is None or attempt.problem or attempt.number is None:
        return WHOLE
    error = attempt.record.error
    if error and error.kind == "collection" and wanted == "missing":
        return None
    if error and (error.kind not in _ENDED_IN_TIME or attempt.record.collected is None):
        return WHOLE
    files = files_of(attempt)
    if has_collected_nothing(attempt) or has_troubled_files(files):
        return WHOLE
    tests = [test.nodeid for test in settled(attempt, files, setting) if _is_wanted(test, wanted)]
    if not tests and error:
        return WHOLE  # what was ended has results of all its tests: only another attempt can say that it was well
    return Again(tests=tuple(tests), base=attempt.number) if tests else None


def _is_wanted(test: TestVerdict, wanted: Wanted) -> bool:
    return has_not_run(test) or (test.verdict.is_bad and (wanted == "failed" or has_no_result(test)))

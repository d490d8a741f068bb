"""The exit code of a run, from the verdicts on its tests and jobs."""

from types import MappingProxyType
from typing import Final

from allranks.errors import ExitCode, strongest
from allranks.report.judged import MergedRun

_CODES: Final = MappingProxyType(
    {
        "infrastructure": ExitCode.INFRASTRUCTURE,
        "interrupted": ExitCode.INTERRUPTED,
        "collection": ExitCode.TESTS_FAILED,
        "gate": ExitCode.TESTS_FAILED,
        "usage": ExitCode.USAGE,
        "timeout": ExitCode.TESTS_FAILED,
        "stopped": ExitCode.TESTS_FAILED,
        "agent": ExitCode.UNACCOUNTED,
    }
)
"""The exit codes of jobs with an error, by its kind."""


def code_of_error(kind: str) -> ExitCode:
    """The exit code of a job with an error of this kind; results are unaccounted for if the kind is unknown."""
    return _CODES.get(kind, ExitCode.UNACCOUNTED)


def exit_code(merged: MergedRun, *, nothing_ran_allowed: bool) -> ExitCode:
    """The exit code of a run; if several apply, the one of highest precedence.

    Each bad verdict has its own (see :attr:`Verdict.exit_code <allranks.report.results.Verdict.exit_code>`): 1 for a
    failed test and for a suite that cannot be collected, 3 for unaccounted results, 4 for infrastructure, 5 for a suite
    without tests, 130 for an interrupt. 5 is added if no test executed.
    """
    codes = {code for suite in merged.suites for code in suite.exit_codes}
    if nothing_ran(merged) and not nothing_ran_allowed:
        codes.add(ExitCode.NOTHING_RAN)
    return strongest(codes)


def nothing_ran(merged: MergedRun) -> bool:
    """True if no rank of any suite executed a test, however skips are read and for whatever reason."""
    return not any(suite.has_executed for suite in merged.suites)

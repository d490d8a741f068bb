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
    """The exit code of a job with an error of this kind; 3 (unaccounted results) if the kind is unknown."""
    return _CODES.get(kind, ExitCode.UNACCOUNTED)


def exit_code(merged: MergedRun, *, nothing_ran_allowed: bool) -> ExitCode:
    """The code of highest precedence among those of the run's verdicts and, if no test executed, 5."""
    codes = {code for suite in merged.suites for code in suite.exit_codes}
    if nothing_ran(merged) and not nothing_ran_allowed:
        codes.add(ExitCode.NOTHING_RAN)
    return strongest(codes)


def nothing_ran(merged: MergedRun) -> bool:
    """True if no rank executed any test, for whatever reason."""
    return not any(suite.executed for suite in merged.suites)

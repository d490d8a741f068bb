"""What a judged run makes of the exit code."""

from allranks.errors import ExitCode, strongest
from allranks.report.judged import MergedRun


def exit_code(merged: MergedRun, *, nothing_ran_allowed: bool) -> ExitCode:
    """The exit code of a run; where several apply, the strongest by the design's order.

    Each bad verdict brings its own (see :attr:`Verdict.exit_code <allranks.report.model.Verdict.exit_code>`): 1 for a
    failed test and for a suite that cannot be collected or is empty, 3 for what is unaccounted, 4 for infrastructure,
    130 for an interrupt. 5 is added when no test executed.

    Args:
        merged: The run, or the part of it that a session answers for (:meth:`allranks.report.judged.MergedRun.only`).
        nothing_ran_allowed: Whether a run in which no test executed is good.
    """
    codes = {code for suite in merged.suites for code in suite.exit_codes}
    if nothing_ran(merged) and not nothing_ran_allowed:
        codes.add(ExitCode.NOTHING_RAN)
    return strongest(codes)


def nothing_ran(merged: MergedRun) -> bool:
    """Whether no rank of any suite executed a test, however skips are read, and whoever has left the tests out."""
    return not any(suite.has_executed for suite in merged.suites)

"""The commands ``allranks stress`` and ``allranks bisect``."""

from collections.abc import Sequence

from allranks.errors import MEANING, ExitCode
from allranks.plugin_manager import JUDGES, Command, implements

BISECT_CODES = {
    ExitCode.OK: "the axis or the commit is found",
    ExitCode.TESTS_FAILED: "no answer: it never failed, no axis decides, or only skipped commits are left",
    ExitCode.USAGE: "the request is wrong; with --git, also if GOOD fails or BAD never fails",
    **{code: MEANING[code] for code in (ExitCode.INFRASTRUCTURE, ExitCode.NOTHING_RAN, ExitCode.INTERRUPTED)},
}
"""The exit codes of ``allranks bisect``."""


@implements
def allranks_commands() -> Sequence[Command]:
    """Add ``stress`` and ``bisect``."""
    package = "allranks.plugins.stress"
    return (
        Command("stress", f"{package}.command", JUDGES, "repeat tests to estimate how often they fail"),
        Command("bisect", f"{package}.bisect", BISECT_CODES, "find the axis or the commit that makes a test fail"),
    )

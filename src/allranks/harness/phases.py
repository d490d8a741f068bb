"""From pytest's test reports to phase events and one outcome for a test."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from allranks.harness.events import Event
from allranks.harness.outcome import Outcome, SkipKind
from allranks.harness.torch_cases.sandcastle import SandcastleReason
from allranks.testing.skips import skipcodes
from allranks.testing.skips.requirement import EnvironmentSkip

TEXT_LIMIT = 64 * 1024
"""Characters of a traceback or of one captured stream that go into an event; the rest is not kept."""

MESSAGE_LIMIT = 1000
"""Characters of a message."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One phase of one test on one rank.

    Attributes:
        when: ``setup``, ``call`` or ``teardown``.
        duration: Seconds.
        message: One line; empty for a phase that passed.
        text: The traceback or the reason.
        skip_code: torch's exit code, for a skip that has one.
    """

    when: str
    outcome: Outcome
    duration: float
    message: str = ""
    text: str = ""
    stdout: str = ""
    stderr: str = ""
    skip_kind: SkipKind | None = None
    skip_code: int | None = None

    def fields(self) -> Event:
        """What goes into a ``phase`` event; what is empty is left out."""
        return {name: value for name, value in vars(self).items() if value not in ("", None)}


def phase_of(report: pytest.TestReport, error: BaseException | None) -> Phase:
    """What a report of pytest's says about one phase.

    Args:
        report: The report, as pytest and its plugins made it.
        error: The exception that ended the phase, if one did.
    """
    kind, code, reason = _skip_of(report, error)
    outcome = Outcome.SKIPPED if kind else _outcome(report, error)
    return Phase(
        when=report.when,
        outcome=outcome,
        duration=report.duration,
        message=shorten(reason if kind else _message(report, outcome), MESSAGE_LIMIT),
        text=shorten(reason if kind else str(report.longreprtext)),
        stdout=shorten(report.capstdout),
        stderr=shorten(report.capstderr),
        skip_kind=kind,
        skip_code=code,
    )


def skip_with_code(error: BaseException | None) -> tuple[SkipKind, int, str] | None:
    """The skip that an exception means by torch's table of exit codes: its kind, code and reason; None for no skip."""
    if isinstance(error, EnvironmentSkip):
        return error.kind, int(error.code), str(error.msg)
    # sys.exit() takes any object, also one that cannot be looked up in a set.
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        reason = skipcodes.reason_of_exit(error.code)
        return None if reason is None else (skipcodes.kind_of_exit(error.code), error.code, reason)
    return None


def _skip_of(report: pytest.TestReport, error: BaseException | None) -> tuple[SkipKind | None, int | None, str]:
    coded = skip_with_code(error) if report.skipped or isinstance(error, SystemExit) else None
    if coded is not None:
        return coded
    if report.skipped and not hasattr(report, "wasxfail"):
        is_sandcastles = isinstance(getattr(error, "msg", None), SandcastleReason)
        return SkipKind.ENVIRONMENT if is_sandcastles else SkipKind.PLAIN, None, skip_reason(report)
    return None, None, ""


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test, or a module while it was collected, was skipped."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")


def _outcome(report: pytest.TestReport, error: BaseException | None) -> Outcome:
    if hasattr(report, "wasxfail"):
        return Outcome.XFAILED if report.skipped else Outcome.XPASSED
    if report.passed:
        return Outcome.PASSED
    if isinstance(error, SystemExit):
        return Outcome.CRASHED
    return Outcome.FAILED if report.when == "call" else Outcome.ERRORED


def _message(report: pytest.TestReport, outcome: Outcome) -> str:
    if outcome in (Outcome.XFAILED, Outcome.XPASSED):
        return str(getattr(report, "wasxfail", ""))
    if outcome is Outcome.PASSED:
        return ""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message if crash is not None else report.longreprtext)
    return next((line for line in text.splitlines() if line.strip()), "")


def shorten(text: str, limit: int = TEXT_LIMIT) -> str:
    """`text` with its middle cut out where it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters cut …\n{text[-half:]}"


def overall(phases: Sequence[Phase]) -> Phase:
    """The phase that decides a test: the first bad one, else the one that was not a plain pass, else the call."""
    bad = next((phase for phase in phases if phase.outcome.is_bad), None)
    if bad is not None:
        return bad
    notable = next((phase for phase in phases if phase.outcome is not Outcome.PASSED), None)
    return notable or next((phase for phase in phases if phase.when == "call"), phases[-1])


def is_good_subtest(report: pytest.TestReport) -> bool:
    """Whether a report is that of a subtest that did not go wrong (``subtests``, ``unittest``'s ``subTest``)."""
    return type(report).__name__ in ("SubtestReport", "SubTestReport") and not report.failed

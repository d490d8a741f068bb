"""From pytest's reports to phases, and what a rank had waited for that goes wrong.

If one rank dies, its peers' collectives fail a moment later. Such a failure does not lead a verdict if the ranks' calls
show that it follows from the peer's: see :mod:`allranks.agent.diagnose.primary_failure`.
"""

import gc
import re
import traceback
import unittest
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import pytest
from _pytest._io.saferepr import saferepr

from allranks.agent.call_log import Wait
from allranks.agent.environment_skips import EnvironmentSkip, SandcastleReason
from allranks.agent.rank.call_counter import chain, wait_of
from allranks.agent.rank.rank_setup import is_failure, tears_down
from allranks.protocol import skip_codes
from allranks.protocol.outcomes import MESSAGE_LIMIT, Outcome, Phase, SkipKind, shorten
from allranks.protocol.tracebacks import headline

SYMPTOM_ATTRIBUTE = "allranks_symptom"
"""An exception with a true attribute of this name declares that its rank waited for a peer in vain."""

_SKIPS: Final = (pytest.skip.Exception, unittest.SkipTest)


def waited_for(error: BaseException | None, last: Wait | None = None) -> Wait | None:
    """What a failure may follow from: the rank had waited for that, in vain; None if it failed by itself.

    That includes exceptions raised from a wait that failed, or while that was handled: of several waits, the first one
    counts. In a group, all must be such.

    Args:
        error: The exception.
        last: What the rank waits for, or has last waited for without success, whatever became of that.
    """
    try:
        if error is None or is_failure(failed_before(error)):
            return None
        waits = [wait for each in chain(error) if (wait := _wait_of(each)) is not None]
        return waits[-1] if waits else last
    except Exception:  # noqa: BLE001 - a suite's own exceptions may have methods that raise
        return None


def failed_before(error: BaseException | None) -> BaseException | None:
    """What had failed before the test waited for a peer in vain, as in ``finally: dist.barrier()``, or left.

    Before an exit that is an assertion alone: a script may well leave when it handles anything else.
    """
    try:
        errors = [each for each in chain(error) if not isinstance(each, _SKIPS)]
        waits = [place for place, each in enumerate(errors) if _wait_of(each)]
        if isinstance(error, SystemExit):
            return next((each for each in errors[max(waits, default=0) + 1 :] if is_failure(each)), None)
        return next(iter(errors[waits[-1] + 1 :]), None) if waits else None
    except Exception:  # noqa: BLE001 - see above
        return None


def is_from_a_worker(error: BaseException | None) -> bool:
    """Whether an exception, or what it follows from, was raised in a worker of a pool, which has passed it on."""
    # multiprocessing.pool and concurrent.futures.process each have a class of this name.
    return error is not None and any(type(each).__name__.lstrip("_") == "RemoteTraceback" for each in chain(error))


def _wait_of(error: BaseException) -> Wait | None:
    if isinstance(error, BaseExceptionGroup):
        waits = [waited_for(each) for each in error.exceptions]
        return waits[0] if all(waits) else None
    return Wait() if getattr(error, SYMPTOM_ATTRIBUTE, False) is True else wait_of(error)


def phase_of(report: pytest.TestReport, error: BaseException | None, seconds: float) -> Phase:
    """Convert a report of pytest to a phase; an invalid report is an error of the test.

    The seconds are by a clock that tests do not change.
    """
    try:
        return _phase_of(report, error, seconds)
    except Exception as trouble:  # noqa: BLE001 - hooks of the suite may have altered the report
        message = f"a hook has made a report that makes no sense: {type(trouble).__name__}: {trouble}"
        return Phase(when="call", outcome=Outcome.ERRORED, duration=seconds, message=shorten(message, MESSAGE_LIMIT))


def _phase_of(report: pytest.TestReport, error: BaseException | None, seconds: float) -> Phase:
    kind, code, reason, gpus = _skip_of(report, error) or (None, None, "", None)
    outcome = Outcome.SKIPPED if kind else _outcome(report, error)
    return Phase(
        when=report.when if report.when in ("setup", "teardown") else "call",
        outcome=outcome,
        duration=seconds,
        message=shorten(reason if kind else _message(report, outcome, error), MESSAGE_LIMIT),
        text=shorten(reason if kind else str(report.longreprtext)),
        stdout=shorten(str(report.capstdout)),
        stderr=shorten(str(report.capstderr)),
        skip_kind=kind,
        skip_code=code,
        gpus_needed=gpus,
    )


class CodedSkip(NamedTuple):
    """Why a rank skipped, with torch's exit code, and the number of GPUs that it asked for, if it has them."""

    kind: SkipKind
    code: int | None
    reason: str
    gpus_needed: int | None = None


def skip_with_code(error: BaseException | None) -> CodedSkip | None:
    """The skip that torch's table of exit codes assigns to an exception; None for no skip."""
    if isinstance(error, EnvironmentSkip):
        return CodedSkip(error.kind, int(error.code), str(error.msg), error.gpus_needed)
    # sys.exit() takes any object, including unhashable ones.
    if isinstance(error, SystemExit) and isinstance(error.code, int) and not is_failure(error.__context__):
        status, reason = error.code, skip_codes.reason_of_exit(error.code)
        if reason is not None:
            return CodedSkip(skip_codes.kind_of_exit(status), int(status), reason, skip_codes.gpus_needed(status))
    return None


def _skip_of(report: pytest.TestReport, error: BaseException | None) -> CodedSkip | None:
    # A test that has ended can no longer be skipped.
    has_ended = report.when == "teardown" or (error is not None and tears_down(traceback.walk_tb(error.__traceback__)))
    may_skip = not has_ended and (report.skipped or isinstance(error, SystemExit))
    coded = skip_with_code(error) if may_skip else None
    if coded is not None:
        return coded
    if report.skipped and not hasattr(report, "wasxfail"):
        is_sandcastles = isinstance(getattr(error, "msg", None), SandcastleReason)
        return CodedSkip(SkipKind.ENVIRONMENT if is_sandcastles else SkipKind.PLAIN, None, skip_reason(report))
    return None


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The reason why a test was skipped, or a module during collection."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    return str(reason).removeprefix("Skipped: ")


def _outcome(report: pytest.TestReport, error: BaseException | None) -> Outcome:
    # As in the summary of pytest: a hook may make what was expected to fail a failure.
    is_expected = hasattr(report, "wasxfail")
    if is_expected and report.skipped:
        return Outcome.XFAILED
    if report.passed:
        return Outcome.XPASSED if is_expected else Outcome.PASSED
    if isinstance(error, SystemExit):
        return Outcome.CRASHED
    return Outcome.FAILED if report.when == "call" else Outcome.ERRORED


_OF_DOCTEST: Final = re.compile(r"^(Expected( nothing)?|UNEXPECTED EXCEPTION)[:\n].*", re.MULTILINE | re.DOTALL)
"""What a doctest has expected and got, and its line; or what it raised."""

_ENDS_OF_DOCTESTS: Final = (": DocTestFailure", ": UnexpectedException")


def _message(report: pytest.TestReport, outcome: Outcome, error: BaseException | None) -> str:
    if outcome in (Outcome.XFAILED, Outcome.XPASSED):
        return str(getattr(report, "wasxfail", ""))
    if outcome is Outcome.PASSED:
        return ""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        text = str(crash.message)
    elif isinstance(report.longrepr, tuple):  # a hook has made a skip a failure
        text = str(report.longrepr[-1])
    else:
        text = _exception_in(str(report.longreprtext))
    return with_cause(headline(text), error)


_MARKED: Final = re.compile(r"(?:^E(?: {3,}.*| *)(?:\n|\Z))+", re.MULTILINE)
"""The lines in which pytest has the exception of a traceback."""

_NATIVE: Final = re.compile(
    r"^Traceback \(most recent call last\):\n(?:  .*\n)+(\S.*)"
    r"|^ *\+ Exception Group Traceback \(most recent call last\):\n(?:  \|   .*\n)+  \| (\S.*)",
    re.MULTILINE,
)
"""A traceback of Python."""


def _exception_in(text: str) -> str:
    """The lines about the last exception in a failure's text; all of the text if it has no traceback.

    A report has only a text if a plugin got it from another process, or if no exception of a test caused the failure:
    a fixture does not exist, or a doctest fails.
    """
    if text.rstrip().endswith(_ENDS_OF_DOCTESTS) and (found := _OF_DOCTEST.search(text)):
        return " ".join(found[0].split())
    blocks = ("\n".join(line[1:].strip() for line in each[0].splitlines()) for each in _MARKED.finditer(text))
    if marked := [block for block in blocks if block.strip()]:
        return marked[-1]
    native = [each[1] or each[2] for each in _NATIVE.finditer(text)]
    return native[-1] if native else text


def with_cause(message: str, error: BaseException | None) -> str:
    """A message with what it does not tell: the first exception of a group, and what had failed before.

    An exception in a finalizer or a thread is the cause of a warning of pytest's, which a suite may make an error.
    """
    if isinstance(error, BaseExceptionGroup):
        message = _line_of(error)  # pytest has its only exception on one line, with all of that one's text
    says_nothing = isinstance(error, Warning) or message.rpartition(".")[2] == type(error).__name__
    first = error.__cause__ if error is not None and error.__cause__ and says_nothing else error
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    if first is not error and first is not None:
        return f"{message}: {_line_of(first)}"
    failed = failed_before(error)
    return f"{_line_of(failed)}; then {message}" if failed is not None else message


def _line_of(error: BaseException) -> str:
    return headline("".join(traceback.format_exception_only(error)))


_MADE_TWICE: Final = "initialize the default process group twice"
_NOT_MADE: Final = "Default process group has not been initialized"
"""Parts of torch's messages (torch 2.6 to 2.14)."""

_GROUP_IS_THERE: Final = (
    "The agent made the default process group before this test. If tests make their own, mark them with "
    "@pytest.mark.no_process_group, or write process_group = false in the table of the suite in matrix.toml."
)
_GROUP_IS_NOT_THERE: Final = (
    "The agent made no process group for this test: for none of a suite with process_group = false, or of one that "
    "launches ranks; for none that is marked no_process_group; and for no unittest.TestCase that uses nothing of "
    'allranks, unless it is marked with @pytest.mark.usefixtures("process_group").'
)


def with_remedy(phase: Phase, error: BaseException | None, *, has_group: bool) -> Phase:
    """A phase whose error is about the default process group, with the marker and the key that decide about it."""
    words, remedy = (_MADE_TWICE, _GROUP_IS_THERE) if has_group else (_NOT_MADE, _GROUP_IS_NOT_THERE)
    if not phase.outcome.is_bad or words not in phase.message or not isinstance(error, Exception):
        return phase
    message = shorten(f"{phase.message.rstrip('.!')}. {remedy}", MESSAGE_LIMIT)
    return replace(phase, message=message, text=shorten(f"{phase.text}\n\n{remedy}"))


class Subtests:
    """The subtests of one test so far (``subtests``, ``unittest``'s ``subTest``)."""

    def __init__(self) -> None:
        self._number = 0
        self._skipped: list[str] = []
        self._reason = ""

    def take(self, report: pytest.TestReport) -> bool:
        """Count a report if it is that of a subtest; return whether the subtest did not fail."""
        if type(report).__name__ not in ("SubtestReport", "SubTestReport"):
            return False
        self._number += 1
        if report.skipped:
            self._skipped.append(str(self._number))
            self._reason = self._reason or shorten(skip_reason(report), MESSAGE_LIMIT)
        return not report.failed

    @property
    def skipped(self) -> str:
        if not self._skipped:
            return ""
        listed = shorten(", ".join(self._skipped), MESSAGE_LIMIT)
        return f"of {self._number} subtests, these were skipped ({listed}): {self._reason}"


def changed(nodeid: str, item: pytest.Item | None) -> Phase:
    """The phase of a test that is not in the place where it was collected."""
    there = "no test" if item is None else f"the test {item.nodeid!r}"
    message = f"the suite has changed what was collected: there is {there} in the place of {nodeid!r}"
    return Phase(when="setup", outcome=Outcome.ERRORED, duration=0.0, message=shorten(message, 1000))


def broken_off(error: BaseException) -> Phase:
    """The phase of a test that ended pytest's session, so that pytest reported nothing."""
    text = "".join(traceback.format_exception(error))
    message = f"the test broke off the whole session: {saferepr(error)}"
    return Phase(when="call", outcome=Outcome.CRASHED, duration=0.0, message=message, text=shorten(text))


def unreported(phases: Sequence[Phase], session: pytest.Session) -> Phase | None:
    """The phase of a good test whose trouble pytest has put into no report; None if there is none.

    A hook or a test may have asked pytest to stop: it then ends with a bad exit status, and a rank goes on.
    """
    if all(phase.when != "call" and phase.outcome is Outcome.PASSED for phase in phases):
        message = "pytest has reported no call of this test: a plugin or a hook has kept it from running"
        return Phase(when="call", outcome=Outcome.ERRORED, duration=0.0, message=message)
    stop = session.shouldfail or session.shouldstop
    if not stop or any(phase.outcome.is_bad for phase in phases):
        return None
    message = shorten(f"the test, or a hook, has asked pytest to stop its session: {stop}", MESSAGE_LIMIT)
    return Phase(when="teardown", outcome=Outcome.ERRORED, duration=0.0, message=message)


def broken_by_a_hook(error: BaseException) -> Phase:
    """The phase of a test that a hook aborted: pytest only reports exceptions of tests and fixtures."""
    text = "".join(traceback.format_exception(error))
    message = shorten(f"a hook has broken off the test: {type(error).__name__}: {error}", 1000)
    return Phase(when="call", outcome=Outcome.ERRORED, duration=0.0, message=message, text=shorten(text))


def raise_unraisable(config: pytest.Config) -> None:
    """Raise what finalizers and threads have raised since the last test, if such warnings are errors.

    pytest does so when it ends its session (8.4 and newer), which a rank never does.
    """
    if all(action != "error" for action, *_ in warnings.filters):
        return
    gc.collect()
    for name in ("unraisable", "thread_exception"):
        plugin = config.pluginmanager.get_plugin(f"{name.removesuffix('_exception')}exception")
        getattr(plugin, f"collect_{name}", lambda _: None)(config)

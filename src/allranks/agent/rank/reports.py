"""Converts pytest's reports to phases, and finds the wait that a failure may follow from.

If one rank dies, collectives of its peers fail a moment later. These failures are secondary if the ranks' calls show
that the death caused them: see :mod:`allranks.agent.diagnose.primary_failure`.
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
"""An exception with a true attribute of this name declares that its rank failed because it waited for a peer."""

_SKIPS: Final = (pytest.skip.Exception, unittest.SkipTest)


def waited_for(error: BaseException | None, last: Wait | None = None) -> Wait | None:
    """The failed wait that a failure may follow from; None if the rank failed by itself.

    An exception follows from a wait if the wait raised it, or raised its ``__cause__`` or ``__context__``. The first of
    several waits counts. In an exception group, all exceptions must follow from a wait.

    Args:
        error: The exception.
        last: The current wait of the rank or its last failed one, even if that raised no exception.
    """
    try:
        if error is None or is_failure(failed_before(error)):
            return None
        waits = [wait for link in chain(error) if (wait := _wait_of(link)) is not None]
        return waits[-1] if waits else last
    except Exception:  # noqa: BLE001 - a suite's own exceptions may have methods that raise
        return None


def failed_before(error: BaseException | None) -> BaseException | None:
    """The exception that was raised before the failed wait (as in ``finally: dist.barrier()``) or before an exit.

    Before an exit, only an assertion or ``pytest.fail`` counts: a script may exit when it handles any other exception.
    """
    try:
        errors = [link for link in chain(error) if not isinstance(link, _SKIPS)]
        waits = [index for index, link in enumerate(errors) if _wait_of(link)]
        earlier = errors[(waits[-1] if waits else 0) + 1 :]
        if isinstance(error, SystemExit):
            return next(filter(is_failure, earlier), None)
        return earlier[0] if waits and earlier else None
    except Exception:  # noqa: BLE001 - see above
        return None


def is_from_a_worker(error: BaseException | None) -> bool:
    """Whether an exception, or one that it follows from, was raised in a worker of a pool."""
    # multiprocessing.pool and concurrent.futures.process each have a class of this name.
    return error is not None and any(type(link).__name__.lstrip("_") == "RemoteTraceback" for link in chain(error))


def _wait_of(error: BaseException) -> Wait | None:
    if isinstance(error, BaseExceptionGroup):
        waits = [waited_for(member) for member in error.exceptions]
        return None if None in waits else waits[0]
    return Wait() if getattr(error, SYMPTOM_ATTRIBUTE, False) is True else wait_of(error)


def phase_of(report: pytest.TestReport, error: BaseException | None, seconds: float) -> Phase:
    """Convert a report of pytest to a phase; an invalid report is an error of the test.

    The duration is given in seconds of a clock that tests cannot change.
    """
    try:
        return _phase_of(report, error, seconds)
    except Exception as problem:  # noqa: BLE001 - hooks of the suite may have changed the report
        message = f"a pytest hook returned an invalid report: {type(problem).__name__}: {problem}"
        return replace(Phase.of_error("call", message), duration=seconds)


def _phase_of(report: pytest.TestReport, error: BaseException | None, seconds: float) -> Phase:
    when = report.when if report.when in ("setup", "teardown") else "call"
    stdout, stderr = shorten(str(report.capstdout)), shorten(str(report.capstderr))
    if skip := _skip_of(report, error):
        return replace(skip.phase(when, seconds), stdout=stdout, stderr=stderr)
    outcome = _outcome(report, error)
    return Phase(
        when=when,
        outcome=outcome,
        duration=seconds,
        message=shorten(_message(report, outcome, error), MESSAGE_LIMIT),
        text=shorten(str(report.longreprtext)),
        stdout=stdout,
        stderr=stderr,
    )


class CodedSkip(NamedTuple):
    """The reason for a skip, with torch's exit code and the number of required GPUs, if these are known."""

    kind: SkipKind
    code: int | None
    reason: str
    gpus_needed: int | None = None

    def phase(self, when: str, seconds: float) -> Phase:
        """The phase that this skip ended."""
        return Phase(
            when=when,
            outcome=Outcome.SKIPPED,
            duration=seconds,
            message=shorten(self.reason, MESSAGE_LIMIT),
            text=shorten(self.reason),
            skip_kind=self.kind,
            skip_code=self.code,
            gpus_needed=self.gpus_needed,
        )


def skip_with_code(error: BaseException | None) -> CodedSkip | None:
    """The skip that an exception stands for in torch's table of exit codes; None for no skip."""
    if isinstance(error, EnvironmentSkip):
        return CodedSkip(error.kind, int(error.code), str(error.msg), error.gpus_needed)
    # sys.exit() accepts any object, including unhashable ones.
    if isinstance(error, SystemExit) and isinstance(error.code, int) and not is_failure(error.__context__):
        status, reason = error.code, skip_codes.reason_of_exit(error.code)
        if reason is not None:
            return CodedSkip(skip_codes.kind_of_exit(status), int(status), reason, skip_codes.gpus_needed(status))
    return None


def _skip_of(report: pytest.TestReport, error: BaseException | None) -> CodedSkip | None:
    # After its call, a test can no longer be skipped.
    has_ended = report.when == "teardown" or (error is not None and tears_down(traceback.walk_tb(error.__traceback__)))
    may_skip = not has_ended and (report.skipped or isinstance(error, SystemExit))
    coded = skip_with_code(error) if may_skip else None
    if coded is not None:
        return coded
    if report.skipped and not hasattr(report, "wasxfail"):
        is_sandcastle_skip = isinstance(getattr(error, "msg", None), SandcastleReason)
        return CodedSkip(SkipKind.ENVIRONMENT if is_sandcastle_skip else SkipKind.PLAIN, None, skip_reason(report))
    return None


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The reason for the skip of a test or, during collection, of a module."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    return str(reason).removeprefix("Skipped: ")


def _outcome(report: pytest.TestReport, error: BaseException | None) -> Outcome:
    # As in pytest's summary: a hook may turn an expected failure into a failure.
    is_expected = hasattr(report, "wasxfail")
    if is_expected and report.skipped:
        return Outcome.XFAILED
    if report.passed:
        return Outcome.XPASSED if is_expected else Outcome.PASSED
    if isinstance(error, SystemExit):
        return Outcome.CRASHED
    return Outcome.FAILED if report.when == "call" else Outcome.ERRORED


_DOCTEST_FAILURE: Final = re.compile(r"^(Expected( nothing)?|UNEXPECTED EXCEPTION)[:\n].*", re.MULTILINE | re.DOTALL)
"""The part of a doctest failure with the expected and actual output, or the exception."""

_DOCTEST_ERRORS: Final = (": DocTestFailure", ": UnexpectedException")


def _message(report: pytest.TestReport, outcome: Outcome, error: BaseException | None) -> str:
    if outcome in (Outcome.XFAILED, Outcome.XPASSED):
        return str(getattr(report, "wasxfail", ""))
    if outcome is Outcome.PASSED:
        return ""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        text = str(crash.message)
    elif isinstance(report.longrepr, tuple):  # a hook has turned a skip into a failure
        text = str(report.longrepr[-1])
    else:
        text = _exception_in(str(report.longreprtext))
    return with_cause(headline(text), error)


_E_LINES: Final = re.compile(r"(?:^E(?: {3,}.*| *)(?:\n|\Z))+", re.MULTILINE)
"""The lines of an exception in pytest's traceback."""

_PYTHON_TRACEBACK: Final = re.compile(
    r"^Traceback \(most recent call last\):\n(?:  .*\n)+(\S.*)"
    r"|^ *\+ Exception Group Traceback \(most recent call last\):\n(?:  \|   .*\n)+  \| (\S.*)",
    re.MULTILINE,
)
"""Python's own traceback, with the line of the exception."""


def _exception_in(text: str) -> str:
    """The lines of the last exception in the text of a failure; the whole text if it has no traceback.

    A report is only text if a plugin received it from another process, or if the failure has no exception, such as a
    missing fixture or a failed doctest.
    """
    if text.rstrip().endswith(_DOCTEST_ERRORS) and (found := _DOCTEST_FAILURE.search(text)):
        return " ".join(found[0].split())
    blocks = ("\n".join(line[1:].strip() for line in block[0].splitlines()) for block in _E_LINES.finditer(text))
    if marked := [block for block in blocks if block.strip()]:
        return marked[-1]
    native = [traceback_[1] or traceback_[2] for traceback_ in _PYTHON_TRACEBACK.finditer(text)]
    return native[-1] if native else text


def with_cause(message: str, error: BaseException | None) -> str:
    """A message with the first exception of a group, and with the exception before a failed wait.

    If a suite turns pytest's warnings into errors, the cause of the warning is an exception in a finalizer or a thread.
    """
    if isinstance(error, BaseExceptionGroup):
        message = _line_of(error)  # pytest puts the text of a single exception in a group into the message
    first = error
    has_no_text = message.rpartition(".")[2] == type(error).__name__
    if error is not None and error.__cause__ and (isinstance(error, Warning) or has_no_text):
        first = error.__cause__
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

_REMEDY_MADE_TWICE: Final = (
    "allranks created the default process group before this test. If tests create their own, mark them with "
    "@pytest.mark.no_process_group; under `allranks run`, process_group = false for their suite also works."
)
_REMEDY_NOT_MADE: Final = (
    "allranks created no process group for this test. It creates none for suites with process_group = false or "
    "launches_ranks = true, for tests marked no_process_group, or for a unittest.TestCase that uses no fixture or "
    'class of allranks, unless it is marked with @pytest.mark.usefixtures("process_group").'
)


def with_remedy(phase: Phase, error: BaseException | None, *, has_group: bool) -> Phase:
    """If a bad phase is about the default process group, name the marker and key for it, with a short traceback."""
    part, remedy = (_MADE_TWICE, _REMEDY_MADE_TWICE) if has_group else (_NOT_MADE, _REMEDY_NOT_MADE)
    if part not in phase.message or not isinstance(error, Exception):
        return phase
    message = shorten(f"{phase.message.rstrip('.!')}. {remedy}", MESSAGE_LIMIT)
    text = pytest.ExceptionInfo.from_exception(error).getrepr(style="short")  # torch's docstring has 100 lines
    return replace(phase, message=message, text=shorten(f"{text}\n\n{remedy}"))


class Subtests:
    """The subtests of one test so far (``subtests``, ``unittest``'s ``subTest``)."""

    def __init__(self) -> None:
        self._number = 0
        self._skipped: list[str] = []
        self._reason = ""

    def take(self, report: pytest.TestReport) -> bool:
        """Count the report if it is a subtest's; return True for a subtest that did not fail."""
        if type(report).__name__ not in ("SubtestReport", "SubTestReport"):
            return False
        self._number += 1
        if report.skipped:
            self._skipped.append(f"#{self._number}")
            self._reason = self._reason or shorten(skip_reason(report), MESSAGE_LIMIT)
        return not report.failed

    @property
    def skipped(self) -> str:
        if not self._skipped:
            return ""
        listed = shorten(", ".join(self._skipped), MESSAGE_LIMIT)
        return f"skipped subtests {listed} of {self._number}: {self._reason}"


def changed_collection(nodeid: str, item: pytest.Item | None) -> Phase:
    """The phase of a test if another test, or none, has its index in the collection."""
    found = "no test" if item is None else f"the test {item.nodeid!r}"
    message = f"the suite changed its collected tests: instead of {nodeid!r}, it has {found}"
    return Phase.of_error("setup", message)


def session_aborted(error: BaseException) -> Phase:
    """The phase of a test that aborted pytest's session, so that pytest reported nothing."""
    text = "".join(traceback.format_exception(error))
    message = f"the test aborted the whole session: {saferepr(error)}"
    return Phase.of_error("call", message, text, Outcome.CRASHED)


def missing_call(phases: Sequence[Phase], session: pytest.Session) -> Phase | None:
    """The phase of a passed test whose call did not run, or that requested the end of pytest's session.

    pytest reports neither. After such a request it ends with a bad exit status, but a rank continues.
    """
    if all(phase.when != "call" and phase.outcome is Outcome.PASSED for phase in phases):
        return Phase.of_error("call", "this test was never called: a plugin or a hook prevented it")
    stop = session.shouldfail or session.shouldstop
    if not stop or any(phase.outcome.is_bad for phase in phases):
        return None
    return Phase.of_error("teardown", f"the test or a hook requested the end of pytest's session: {stop}")


def aborted_by_hook(error: BaseException) -> Phase:
    """The phase of a test that a hook aborted: pytest reports only exceptions of tests and fixtures."""
    text = "".join(traceback.format_exception(error))
    return Phase.of_error("call", f"a hook aborted the test: {type(error).__name__}: {error}", text)


def raise_unraisable(config: pytest.Config) -> None:
    """Raise the exceptions of finalizers and threads since the last test, if their warnings are errors.

    pytest does so at the end of its session (8.4 and newer), which a rank never reaches.
    """
    if all(action != "error" for action, *_ in warnings.filters):
        return
    gc.collect()
    plugins = {"unraisableexception": "collect_unraisable", "threadexception": "collect_thread_exception"}
    for name, collect in plugins.items():
        getattr(config.pluginmanager.get_plugin(name), collect, lambda _: None)(config)

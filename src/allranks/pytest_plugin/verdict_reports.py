"""Verdicts over ranks as pytest's own reports: one test, one report, however many ranks ran it."""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import pytest
from _pytest._code.code import TerminalRepr
from _pytest._io import TerminalWriter

from allranks.engines.base import JobSpec
from allranks.protocol.outcomes import shorten
from allranks.protocol.records import (
    JOURNAL,
    SCHEMA,
    Finished,
    JobStarted,
    Passed,
    Printed,
    RankEnded,
    Record,
    TestStarted,
)
from allranks.protocol.tracebacks import folded
from allranks.protocol.xml_text import xml_id
from allranks.report.folder import Attempt
from allranks.report.journal import JournalReader
from allranks.report.judge.judging import judge
from allranks.report.judge.rules import VerdictPolicy
from allranks.report.results import XPASS, TestVerdict, VerdictKind, VerdictRule, compact
from allranks.report.run_files import JobError
from allranks.runner.listener import RunListener
from allranks.runner.progress import Tests

_NOT_THERE: Final = (
    "it is there when pytest collects, and not when the ranks' process does. If its name comes from a set, set "
    "PYTHONHASHSEED to a number before pytest starts"
)
_NO_RESULT: Final = "no rank reported this test"

When = Literal["setup", "call", "teardown"]


class VerdictReporter(RunListener):
    """Takes a job's records as they come, and reports each test when all its ranks have ended it; a plugin of pytest's.

    A test is judged by the rules of the report. When the job has ended, its journal is judged as a whole: what was
    reported as good before, and is not, is reported once more.
    """

    def __init__(self, session: pytest.Session, world_size: int) -> None:
        self._terminal: Any = session.config.pluginmanager.get_plugin("terminalreporter")
        super().__init__(self._say)
        self._hook = session.config.hook
        self._prints = session.config.getoption("capture") == "no"
        self._items = {xml_id(item.nodeid): item for item in session.items}
        self._start = JobStarted(schema=SCHEMA, run_id="", cell="", suite="", attempt=1, world_size=world_size)
        self._records: dict[str, list[Record]] = {}
        self._good: dict[str, bool] = {}
        self._reports: Sequence[pytest.TestReport] = ()
        self.has_bad = False  # whether any report was bad
        self.has_executed = False  # whether any rank executed a test, as the report counts it

    def _say(self, line: str) -> None:
        if self._prints and self._terminal is not None:
            self._terminal.ensure_newline()
            self._terminal.write_line(line)

    def job_started(self, spec: JobSpec, tests: Tests) -> None:
        """Say nothing: the header of the session has it."""

    def job_ended(self, job_id: str, tests: Tests, seconds: float, error: JobError | None) -> None:
        """Say nothing: the summary has it."""

    def take(self, job_id: str, record: Record) -> None:
        """Take in a record; report the tests that have ended when the next one starts."""
        match record:
            case Printed():
                super().take(job_id, record)
            case TestStarted():
                self._report_ended(running=record.nodeid)
                self._records.setdefault(record.nodeid, []).append(record)
            case Passed() | RankEnded():
                self._records.setdefault(record.nodeid, []).append(record)

    def _report_ended(self, running: str) -> None:
        for nodeid in [nodeid for nodeid in self._records if nodeid != running]:
            journal = JournalReader(Path(JOURNAL))
            for record in (self._start, *self._records[nodeid], Finished(status=0)):
                journal.add(record)
            attempt = Attempt(cell="", suite="", files=(), world_sizes={"--ranks": self._start.world_size})
            for test in judge(attempt, journal.files(""), VerdictPolicy()):
                if test.verdict.rule is not VerdictRule.UNACCOUNTED:  # some ranks may still be in it
                    del self._records[nodeid]
                    self._report(test)

    def settle(self, tests: Iterable[TestVerdict]) -> None:
        """Report the tests that have not been reported, or not rightly."""
        for test in tests:
            was_good = self._good.get(test.nodeid)
            is_not_run = test.verdict.rule is VerdictRule.JOB
            if (was_good is None and not is_not_run) or (was_good and test.verdict.is_bad):
                self._report(test)

    def report_the_rest(self, error: JobError | None, stopped: Container[str]) -> None:
        """Report the tests without any result as errors: no test may be missing unnoticed.

        `stopped` has the tests that did not run because the session was to end; `error` is what went wrong with the
        job.
        """
        why = error.what if error else _NOT_THERE
        for nodeid, item in self._items.items():
            if nodeid not in self._good and (error or item.nodeid not in stopped):
                self._log(item, [_report(item, "setup", "failed", longrepr=f"{_NO_RESULT}: {why}")])
                self.has_bad = True

    def _report(self, test: TestVerdict) -> None:
        item = self._items.get(test.nodeid)
        if item is None:  # a module that skips as a whole: pytest has reported it when it collected
            return
        self._good[test.nodeid] = not test.verdict.is_bad
        self.has_bad = self.has_bad or test.verdict.is_bad
        self.has_executed = self.has_executed or test.verdict.executed
        self._log(item, list(_reports(item, test)))

    def _log(self, item: pytest.Item, reports: Sequence[pytest.TestReport]) -> None:
        self._reports = reports
        item.ihook.pytest_runtest_protocol(item=item, nextitem=None)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool:
        """Log a test in place of running it, inside what other plugins do around a test: editors learn its file so."""
        self._hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports:
            self._hook.pytest_runtest_logreport(report=report)
        self._hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True


def _reports(item: pytest.Item, test: TestVerdict) -> Iterator[pytest.TestReport]:
    """The reports of the phases of a test, as if one process had run it."""
    verdict = test.verdict
    bad = _phase_of(test) if verdict.is_bad else ""
    if bad == "setup":
        yield _report(item, "setup", "failed", longrepr=_representation(test), sections=_sections(test))
    else:
        yield _report(item, "setup", "passed")
        call = _report(item, "call", "passed", duration=test.time)
        if bad == "call":
            call.outcome, call.longrepr, call.sections = "failed", _representation(test), _sections(test)
        elif verdict.reason == "pytest.xfail":
            call.outcome, call.wasxfail = "skipped", verdict.message
        elif verdict.kind is VerdictKind.SKIPPED:
            path, line, _ = item.location
            call.outcome, call.longrepr = "skipped", (path, (line or 0) + 1, f"Skipped: {verdict.message}")
        elif verdict.reason == XPASS:
            call.wasxfail = ""
        yield call
    ranks = [("ranks", compact(test.ranks))]
    if bad == "teardown":
        yield _report(
            item, "teardown", "failed", longrepr=_representation(test), sections=_sections(test), user_properties=ranks
        )
    else:
        yield _report(item, "teardown", "passed", user_properties=ranks)


def _phase_of(test: TestVerdict) -> When:
    """The phase in which the leading rank went wrong; a crash or a hang is in the test itself, as far as is known."""
    leading = next((rank for rank in test.ranks if rank.rank == test.verdict.leading), None)
    match leading.phase if leading else "":
        case "setup" | "teardown" as phase:
            return phase
        case _:
            return "call"


def _report(item: pytest.Item, when: When, outcome: Literal["passed", "failed"], **more: Any) -> pytest.TestReport:  # noqa: ANN401
    keywords: dict[str, Literal[1]] = dict.fromkeys(item.keywords, 1)
    given = {"longrepr": None, "duration": 0.0, **more}
    return pytest.TestReport(item.nodeid, item.location, keywords, outcome, when=when, **given)


@dataclass(frozen=True)
class _Headline:
    """What pytest prints of a failure where it has one line for it."""

    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(eq=False)
class _Representation(TerminalRepr):
    """A failure as pytest prints it. On CI services its summary would repeat all of a plain text."""

    reprcrash: _Headline
    text: str

    def toterminal(self, tw: TerminalWriter) -> None:
        """Print the whole text."""
        tw.line(self.text)


def _representation(test: TestVerdict) -> _Representation:
    verdict = test.verdict
    text = shorten("\n\n".join(filter(None, (verdict.message, folded(verdict.text)))))
    return _Representation(_Headline(verdict.message.partition("\n")[0]), text)


def _sections(test: TestVerdict) -> list[tuple[str, str]]:
    """What the leading rank printed."""
    leading = next((rank for rank in test.ranks if rank.rank == test.verdict.leading), None)
    printed = (("stdout", leading.stdout), ("stderr", leading.stderr)) if leading else ()
    return [(f"Captured {name} of rank {test.verdict.leading}", text) for name, text in printed if text]

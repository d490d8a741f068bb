"""Converts verdicts to pytest's reports: one report for each test, however many ranks ran it."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Literal

import pytest
from _pytest._code.code import ReprEntry, ReprFileLocation, TerminalRepr
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
    TestSlow,
    TestStarted,
)
from allranks.protocol.tracebacks import OUTSIDE, line_kind
from allranks.protocol.xml_text import xml_id
from allranks.report.folder import Attempt
from allranks.report.journal import JournalReader
from allranks.report.judge.judging import judge
from allranks.report.judge.rules import VerdictPolicy, own_text, sections
from allranks.report.results import XPASS, TestVerdict, VerdictKind, VerdictRule, compact, rank_summary
from allranks.report.run_files import JobError
from allranks.runner.listener import RunListener, describe_slow
from allranks.runner.progress import Tests

_NOT_COLLECTED: Final = (
    "pytest has collected it, but the process that starts the ranks has not. If its name depends on the order of a "
    "set, set PYTHONHASHSEED to a number before pytest starts"
)
_NO_RESULT: Final = "no rank reported this test"

When = Literal["setup", "call", "teardown"]


class RankFailedError(Exception):
    """The failure of a test on ranks, for hooks that expect an exception."""


class VerdictReporter(RunListener):
    """A pytest plugin that receives a job's records, and reports each test when all of its ranks have ended it.

    Tests are judged by the rules of the report. When the job has ended, its journal is judged as a whole, and tests
    that were reported as passed but have failed are reported again.
    """

    def __init__(self, session: pytest.Session, world_size: int) -> None:
        self._terminal: Any = session.config.pluginmanager.get_plugin("terminalreporter")
        super().__init__(self._print)
        self._hook = session.config.hook
        self._prints = session.config.getoption("capture") == "no"
        self._is_quiet = session.config.getoption("verbose") < 0
        self._style: str = session.config.getoption("tbstyle")
        self._session = session
        self._start = JobStarted(schema=SCHEMA, run_id="", cell="", suite="", attempt=1, world_size=world_size)
        self._records: dict[str, list[Record]] = {}
        self._passed: dict[str, bool] = {}
        self._reports: Sequence[pytest.TestReport] = ()
        self.has_failed = False  # whether any test failed
        self.has_executed = False  # whether any rank executed a test, by the rules of the report

    @cached_property
    def _items(self) -> Mapping[str, pytest.Item]:
        """The tests, which pytest has collected when the first of them runs."""
        return {xml_id(item.nodeid): item for item in self._session.items}

    def _print(self, line: str, **markup: bool) -> None:
        if self._terminal is not None:
            self._terminal.ensure_newline()
            self._terminal.write_line(line, **markup)

    def job_started(self, spec: JobSpec, tests: Tests) -> None:
        """Print nothing: the session's header has this information."""
        with self.lock:
            self._set_running(spec, tests)

    def job_ended(self, job_id: str, tests: Tests, seconds: float, error: JobError | None) -> None:
        """Print nothing: the session's summary has this information."""

    def take(self, job_id: str, record: Record) -> None:
        """Process a record; when a test starts, report the tests that have ended."""
        with self.lock:
            match record:
                case Printed() if self._prints:
                    super().take(job_id, record)
                case TestSlow() if not self._is_quiet:
                    self._print(describe_slow(record), yellow=True)
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

    def report_final(self, tests: Iterable[TestVerdict]) -> None:
        """Report tests that have not been reported, and tests that were reported as passed but have failed."""
        for test in tests:
            has_passed = self._passed.get(test.nodeid)
            was_not_run = test.verdict.rule is VerdictRule.JOB
            if (has_passed is None and not was_not_run) or (has_passed and test.verdict.is_bad):
                self._report(test)

    def report_missing(self, error: JobError | None, stopped: Container[str]) -> None:
        """Report the tests without a result as errors, so that no test is missing.

        Args:
            error: The error of the job, if any.
            stopped: The tests that did not run because the session was stopped.
        """
        why = error.what if error else _NOT_COLLECTED
        for nodeid, item in self._items.items():
            if nodeid not in self._passed and (error or item.nodeid not in stopped):
                self._log(item, [_report(item, "setup", "failed", longrepr=f"{_NO_RESULT}: {why}")])
                self.has_failed = True

    def _report(self, test: TestVerdict) -> None:
        item = self._items.get(test.nodeid)
        if item is None:  # a skipped module, which pytest has reported during collection
            return
        self._passed[test.nodeid] = not test.verdict.is_bad
        self.has_failed = self.has_failed or test.verdict.is_bad
        self.has_executed = self.has_executed or test.verdict.executed
        self._log(item, list(_reports(item, test, self._style)))

    def _log(self, item: pytest.Item, reports: Sequence[pytest.TestReport]) -> None:
        self._reports = reports
        item.ihook.pytest_runtest_protocol(item=item, nextitem=None)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool:
        """Log the reports of a test instead of running it, in the hook where editors' plugins read the test's file."""
        self._hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports:
            self._hook.pytest_runtest_logreport(report=report)
            if report.failed:  # VS Code shows failures of fixtures only after this hook
                call = pytest.CallInfo.from_call(partial(_fail, report), report.when)
                item.ihook.pytest_exception_interact(node=item, call=call, report=report)
        self._hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True


def _reports(item: pytest.Item, test: TestVerdict, style: str) -> Iterator[pytest.TestReport]:
    """The reports of the phases of a test, as if one process had run it; style is the value of ``--tb``."""
    verdict = test.verdict
    failed = _failed_phase(test) if verdict.is_bad else ""
    failure = {"longrepr": _representation(item, test, style), "sections": _sections(test)} if failed else {}
    if failed == "setup":
        yield _report(item, "setup", "failed", **failure)
    else:
        yield _report(item, "setup", "passed")
        call = _report(item, "call", "passed", duration=test.time)
        if failed == "call":
            call = _report(item, "call", "failed", duration=test.time, **failure)
        elif verdict.reason == "pytest.xfail":
            call.outcome, call.wasxfail = "skipped", verdict.message
        elif verdict.kind is VerdictKind.SKIPPED:
            path, line, _ = item.location
            call.outcome, call.longrepr = "skipped", (path, (line or 0) + 1, f"Skipped: {verdict.message}")
        elif verdict.reason == XPASS:
            call.wasxfail = ""
        yield call
    ranks = [("ranks", compact(test.ranks))]
    if failed == "teardown":
        yield _report(item, "teardown", "failed", **failure, user_properties=ranks)
    else:
        yield _report(item, "teardown", "passed", user_properties=ranks)


def _fail(report: pytest.TestReport) -> None:
    raise RankFailedError(report.longreprtext)


def _failed_phase(test: TestVerdict) -> When:
    """The phase in which the first failed rank failed; "call" if it is unknown, as for a crash or a hang."""
    match test.primary.phase if test.primary else "":
        case "setup" | "teardown" as phase:
            return phase
        case _:
            return "call"


def _report(item: pytest.Item, when: When, outcome: Literal["passed", "failed"], **more: Any) -> pytest.TestReport:  # noqa: ANN401
    keywords: dict[str, Literal[1]] = dict.fromkeys(item.keywords, 1)
    fields = {"longrepr": None, "duration": 0.0, **more}
    return pytest.TestReport(item.nodeid, item.location, keywords, outcome, when=when, **fields)


@dataclass(eq=False)
class _Representation(TerminalRepr):
    """A failure of a test as pytest prints it, with the value of ``--tb`` as the style."""

    reprcrash: ReprFileLocation  # for --tb=line, and the short summary
    test: TestVerdict
    style: str

    def __str__(self) -> str:
        """The texts of all ranks, for reports in files."""
        return shorten("\n\n".join(filter(None, (self.test.verdict.message, self.test.verdict.text))))

    def toterminal(self, tw: TerminalWriter) -> None:
        """Print the primary failure; in the style "long", also the texts of the other ranks."""
        if self.style == "line":
            if _failed_phase(self.test) != "call":  # otherwise, pytest prints it
                self.reprcrash.toterminal(tw)
            return
        for line in self.test.verdict.message.splitlines():
            tw.line(line, red=True, bold=True)
        tw.line(rank_summary(self.test.ranks, self.test.primary))
        for text in filter(None, self._texts()):
            tw.line()
            _write_traceback(shorten(text.rstrip()), tw)

    def _texts(self) -> Iterator[str]:
        """The text of the primary failure, and those of the other ranks if they are shown."""
        primary, is_long = self.test.primary, self.style == "long"
        if primary and (text := own_text(primary)) != primary.message:
            yield text if is_long else text.partition(OUTSIDE)[0]
        if is_long or not primary:
            yield from (section.text for section in sections(self.test.ranks, primary) if primary not in section.ranks)


def _write_traceback(text: str, tw: TerminalWriter) -> None:
    """Print a traceback in pytest's colors."""
    for kind, group in groupby(text.split("\n"), line_kind):
        lines = list(group)
        match kind:
            case "source" | "error":
                ReprEntry(lines, None, None, None, "short").toterminal(tw)
            case "location":
                for path, colon, rest in (line.partition(":") for line in lines):
                    tw.write(path, red=True, bold=True)
                    tw.line(f"{colon}{rest}")
            case "other":
                for line in lines:
                    tw.line(line)


def _representation(item: pytest.Item, test: TestVerdict, style: str) -> _Representation:
    _, failed = test.source
    _, first, _ = item.location
    line = failed or (first or 0) + 1
    return _Representation(ReprFileLocation(str(item.path), line, test.verdict.message.partition("\n")[0]), test, style)


def _sections(test: TestVerdict) -> list[tuple[str, str]]:
    """The output of the rank with the primary failure."""
    primary = test.primary
    streams = (("stdout", primary.stdout), ("stderr", primary.stderr)) if primary else ()
    return [(f"Captured {name} of rank {test.verdict.leading}", text) for name, text in streams if text]

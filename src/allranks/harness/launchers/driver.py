"""The driver: a fork of the agent in which a launcher test starts its ranks and waits for them.

It runs the item as a rank runs one, alone and without a process group, but it is no rank: its files are in a folder of
their own. There it also writes down what arrives from its ranks, and which of its own phases only repeat what ranks
have said; the agent reads that when the driver has ended the test (:mod:`allranks.harness.launchers.driver_account`).
"""

import unittest
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from _pytest.skipping import evaluate_xfail_marks

from allranks.harness import kernel
from allranks.harness.channel import Report, send_report
from allranks.harness.collection.markers import has_thread_ranks, is_launcher, time_limit
from allranks.harness.events import EventLog, rank_events
from allranks.harness.gangs.output import Output
from allranks.harness.gangs.rank_process import Echo
from allranks.harness.launchers.launch import LaunchTerms, Workplace
from allranks.harness.launchers.launched_rank import RankTerms, forget_rank
from allranks.harness.outcome import Outcome, may_disagree
from allranks.harness.ranks.rank import Assignment, run_rank, seed_of_test

DRIVER = 0
"""The number of the driver in its crew of one."""

_OF_RANKS = "allranks_of_ranks"


def driver_folder(results: Path) -> Path:
    """The folder of the driver's own files."""
    return results / "driver"


def driver_events(results: Path) -> Path:
    """The driver's file of events."""
    return rank_events(driver_folder(results), DRIVER)


@dataclass(frozen=True, kw_only=True)
class Launching:
    """What a driver needs to know besides its assignment.

    Attributes:
        results: Folder of the files of its ranks.
        echo: Gets each line that its ranks print; None for nobody.
    """

    results: Path
    echo: Echo | None


def run_driver(session: pytest.Session, assignment: Assignment, launching: Launching) -> NoReturn:
    """Be a driver until the agent says that it is over. Never returns."""
    kernel.adopt_orphans()
    log = EventLog(driver_events(launching.results))
    surroundings = DriverSurroundings(session, assignment, launching, log)
    for item in filter(is_launcher, session.items):
        item.cls.allranks_surroundings = surroundings  # type: ignore[attr-defined]
    session.config.pluginmanager.register(_RepeatWatch(log), "allranks-driver")
    run_rank(session, replace(assignment, results=driver_folder(launching.results), url=None))


class DriverSurroundings:
    """What launcher tests depend on an agent for; see :class:`allranks.harness.launchers.launch.Surroundings`.

    Args:
        session: pytest's session.
        assignment: The driver's.
        launching: What ranks need to know.
        log: The driver's events.
    """

    def __init__(self, session: pytest.Session, assignment: Assignment, launching: Launching, log: EventLog) -> None:
        self._items = {(item.cls, item.name): item for item in filter(is_launcher, session.items)}  # type: ignore[attr-defined]
        self._config = assignment.config
        self._reports = assignment.reports
        self._launching = launching
        self._log = log

    @contextmanager
    def workplace(self, _case: type[unittest.TestCase]) -> Iterator[Workplace]:
        """See :class:`allranks.harness.launchers.launch.Surroundings`."""
        forget_rank()
        yield Workplace(
            results=self._launching.results,
            journal=self._log,
            limits=self._config.limits,
            show=_show_nobody,
            tell_release=self._tell_release,
            echo=self._launching.echo,
        )

    def _tell_release(self) -> None:
        """Have the agent know that set-up is over."""
        send_report(self._reports, Report(outcome=Outcome.PASSED, is_final=False, starts_clock=True))

    def launch_terms(self, case: unittest.TestCase) -> LaunchTerms:
        """See :class:`allranks.harness.launchers.launch.Surroundings`."""
        item = self._item(case)
        return LaunchTerms(
            nodeid=item.nodeid,
            limit=time_limit(item, self._config),
            may_disagree=may_disagree(item.nodeid, self._config.mixed_skip),
        )

    def rank_terms(self, case: unittest.TestCase) -> RankTerms:
        """See :class:`allranks.harness.launchers.launch.Surroundings`."""
        item = self._item(case)
        seed = seed_of_test(self._config.seed, item.nodeid)
        return RankTerms(nodeid=item.nodeid, seed=seed, expects_failure=_expects_failure(item, case))

    def _item(self, case: unittest.TestCase) -> pytest.Item:
        return self._items[type(case), case._testMethodName]  # noqa: SLF001 - unittest gives the name nowhere else


def _show_nobody(_outputs: Mapping[int, Output]) -> None:
    """What ranks print is in their own files."""


def _expects_failure(item: pytest.Item, case: unittest.TestCase) -> bool:
    if evaluate_xfail_marks(item) is not None:
        return True
    test = getattr(type(case), case._testMethodName)  # noqa: SLF001 - as above
    return any(getattr(each, "__unittest_expecting_failure__", False) for each in (test, type(case)))


class _RepeatWatch:
    """A pytest plugin that tells a launching process's own trouble from what its ranks have said before."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Note whose trouble a phase shows, and what of it pytest does not show."""
        report = yield
        if has_thread_ranks(item):
            self._log.write("shares_outcome", nodeid=item.nodeid)
        # Of several errors of one unittest, the test's and tearDown's, pytest shows the first.
        hidden = [info.value for info in getattr(item, "_excinfo", None) or ()]
        if call.excinfo is not None and getattr(call.excinfo.value, _OF_RANKS, False):
            self._log.write("repeats_ranks", nodeid=item.nodeid, when=call.when)
        for error in hidden:
            if not getattr(error, _OF_RANKS, False):
                self._write_hidden(item, error)
        return report

    def _write_hidden(self, item: pytest.Item, error: BaseException) -> None:
        info = pytest.ExceptionInfo.from_exception(error)
        self._log.write(
            "hidden_error",
            nodeid=item.nodeid,
            when="teardown",
            outcome="errored",
            duration=0.0,
            message=info.exconly(tryshort=True).splitlines()[0],
            text=str(info.getrepr(style="long")),
        )

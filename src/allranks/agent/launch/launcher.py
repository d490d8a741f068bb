"""The launcher: a fork of the fork server in which a multi-process test starts its ranks and waits for them.

It runs the pytest item like a rank, but alone, without a process group, and with its files in a separate folder. It
also reports the outcomes of its ranks, and which of its own phases only repeat what its ranks have reported
(:mod:`allranks.agent.supervisor.launcher_outcomes`).
"""

import os
import unittest
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from _pytest.skipping import xfailed_key

from allranks.agent import linux
from allranks.agent.channel import (
    Debugging,
    HiddenError,
    LaunchedEnd,
    Message,
    RankEnd,
    RankPrinted,
    Released,
    RepeatsRanks,
    SharesOutcome,
)
from allranks.agent.gangs.local_ranks import Echo
from allranks.agent.gpus import query_gpus_in_forks
from allranks.agent.launch.launch import LaunchOptions
from allranks.agent.launch.launched_rank import RankOptions, forget_rank
from allranks.agent.launch.own_ranks import REPEATS_RANKS_ATTRIBUTE, RankFailureError
from allranks.agent.output import Output
from allranks.agent.program import launcher_folder
from allranks.agent.rank.marker_options import has_thread_ranks, is_launcher, time_limit
from allranks.agent.rank.rank import Assignment, run_rank
from allranks.protocol.config import seed_of_test
from allranks.protocol.outcomes import Phase, may_disagree
from allranks.protocol.records import Passed, RankEnded, Record, TestSlow
from allranks.protocol.tracebacks import headline

_LINE_LIMIT = 1 << 16  # characters


def run_launcher(session: pytest.Session, assignment: Assignment, *, prints_live: bool) -> NoReturn:
    """Run as a launcher until the supervisor ends it. Never returns."""
    linux.adopt_orphans()
    query_gpus_in_forks()
    context = AgentLaunchContext(session, assignment, prints_live=prints_live)
    for item in filter(is_launcher, session.items):
        # Set on the base class, so that other test classes that fixtures use have it, too.
        base: Any = next(base for base in item.cls.__mro__ if "allranks_launcher" in vars(base))  # type: ignore[attr-defined]
        base.allranks_launch_context = context
    session.config.pluginmanager.register(_LauncherReports(context), "allranks-launcher")
    own = replace(assignment.request, results=launcher_folder(assignment.request.results), url=None)
    run_rank(session, replace(assignment, request=own))


class AgentLaunchContext:
    """The launch context of tests that run under an agent.

    It sends the launcher's additional messages; the rank loop, which runs the test, sends the others.

    Attributes:
        nodeid: The running test.
    """

    def __init__(self, session: pytest.Session, assignment: Assignment, *, prints_live: bool) -> None:
        self.nodeid = ""
        self.limits = assignment.config.limits
        self.code: Path | None = session.config.rootpath
        self.echo: Echo | None = self._forward_line if prints_live else None
        self._items = {item.nodeid: item for item in filter(is_launcher, session.items)}
        self._config = assignment.config
        self._results = assignment.request.results
        self._connection = RankEnd(os.dup(assignment.connection))

    def _forward_line(self, rank: int, line: str) -> None:
        self.send(RankPrinted(rank=rank, line=line[:_LINE_LIMIT]))

    def send(self, message: Message) -> None:
        self._connection.send(message)

    def write(self, record: Record) -> None:
        """Forward the outcome of a rank, or that the test is slow; the supervisor needs no other record."""
        match record:
            case Passed() | RankEnded():
                self.send(LaunchedEnd(nodeid=self.nodeid, end=record))
            case TestSlow():
                self.send(record)

    @contextmanager
    def results(self) -> Iterator[Path]:
        forget_rank()  # this process is none of the ranks that the test starts
        yield self._results

    def show_output(self, outputs: Mapping[int, Output]) -> None:
        """Do nothing: the supervisor shows the output of this process."""

    def note_release(self, world_size: int) -> None:
        self.send(Released(nodeid=self.nodeid, world_size=world_size))

    def note_quit(self) -> None:
        self.send(Debugging(is_waiting=False, has_quit=True))

    def launch_options(self, _case: unittest.TestCase) -> LaunchOptions:
        item = self._items[self.nodeid]
        return LaunchOptions(
            nodeid=item.nodeid,
            limit=time_limit(item, self._config),
            may_disagree=may_disagree(item.nodeid, self._config.mixed_skip),
        )

    def rank_options(self, nodeid: str) -> RankOptions:
        return RankOptions(nodeid=nodeid, seed=seed_of_test(self._config.seed, nodeid))


class _LauncherReports:
    """A pytest plugin that separates the launcher's own errors from those that its ranks have reported."""

    def __init__(self, context: AgentLaunchContext) -> None:
        self._context = context

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Store the node id of the running test."""
        self._context.nodeid = item.nodeid
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Report whether a phase repeats a rank's error, and which errors pytest hides."""
        # pytest reads the exception of a unittest case from here.
        info = next(iter(getattr(item, "_excinfo", None) or ()), call.excinfo)
        if info is not None:
            _apply_xfail_raises(item, info.value)
        report = yield
        if has_thread_ranks(item):
            self._context.send(SharesOutcome(nodeid=item.nodeid))
        if call.excinfo is not None and getattr(call.excinfo.value, REPEATS_RANKS_ATTRIBUTE, False):
            self._context.send(RepeatsRanks(nodeid=item.nodeid, when=call.when))
        # If both a unittest test and its tearDown raise, pytest shows the first error only, and removes it here.
        for hidden in getattr(item, "_excinfo", None) or ():
            if not getattr(hidden.value, REPEATS_RANKS_ATTRIBUTE, False):
                self._context.send(HiddenError(nodeid=item.nodeid, phase=_phase_of_hidden(hidden.value)))
        return report


def _apply_xfail_raises(item: pytest.Item, error: BaseException) -> None:
    """Apply ``xfail(raises=...)`` to the exception of the rank, rather than to :class:`RankFailureError`."""
    expected = item.stash.get(xfailed_key, None)
    if expected is not None and isinstance(error, RankFailureError) and isinstance(expected.raises, type | tuple):
        kinds = expected.raises if isinstance(expected.raises, tuple) else (expected.raises,)
        is_expected = any(kind.__name__ in error.raised for kind in kinds)
        # None expects any exception, and () none.
        item.stash[xfailed_key] = replace(expected, raises=None if is_expected else ())


def _phase_of_hidden(error: BaseException) -> Phase:
    info = pytest.ExceptionInfo.from_exception(error)
    return Phase.of_error("teardown", headline(info.exconly(tryshort=True)), str(info.getrepr(style="long")))

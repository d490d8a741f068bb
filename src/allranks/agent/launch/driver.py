"""The driver: a fork of the fork server in which a launcher test starts its ranks and waits for them.

It runs the item as a rank would, alone and without a process group, but it is not a rank: its files are in a separate
folder. It also reports the outcomes of its ranks, and which of its own phases only repeat what ranks have reported
(:mod:`allranks.agent.supervisor.launcher_outcomes`).
"""

import os
import unittest
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
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
from allranks.agent.gpus import query_gpus_in_forks
from allranks.agent.launch.launch import LaunchTerms, Workplace
from allranks.agent.launch.launched_rank import RankTerms, forget_rank
from allranks.agent.launch.own_ranks import OF_RANKS_ATTRIBUTE, RankFailureError
from allranks.agent.output import Output
from allranks.agent.program import driver_folder
from allranks.agent.rank.marker_options import has_thread_ranks, is_launcher, time_limit
from allranks.agent.rank.rank import Assignment, run_rank
from allranks.protocol.config import seed_of_test
from allranks.protocol.outcomes import MESSAGE_LIMIT, Outcome, Phase, may_disagree, shorten
from allranks.protocol.records import Passed, RankEnded, Record
from allranks.protocol.tracebacks import headline

_LINE = 1 << 16


def run_driver(session: pytest.Session, assignment: Assignment, *, prints_at_once: bool) -> NoReturn:
    """Run as a driver until the supervisor ends it. Never returns."""
    linux.adopt_orphans()
    query_gpus_in_forks()
    telling = _Telling(assignment.connection)
    surroundings = DriverSurroundings(session, assignment, telling, prints_at_once=prints_at_once)
    for item in filter(is_launcher, session.items):
        # On the class that the adapters know, so that a class of fixtures beside the tests has it, too.
        base: Any = next(each for each in item.cls.__mro__ if "allranks_launcher" in vars(each))  # type: ignore[attr-defined]
        base.allranks_surroundings = surroundings
    session.config.pluginmanager.register(_RepeatWatch(telling), "allranks-driver")
    own = replace(assignment.request, results=driver_folder(assignment.request.results), url=None)
    run_rank(session, replace(assignment, request=own))


class _Telling:
    """Sends the driver's own reports on its test; the rank's loop, which runs the test, sends the others."""

    def __init__(self, connection: int) -> None:
        self._connection = RankEnd(os.dup(connection))
        self.nodeid = ""

    def write(self, record: Record) -> None:
        if isinstance(record, Passed | RankEnded):
            self.tell(LaunchedEnd(nodeid=self.nodeid, end=record))

    def echo(self, rank: int, line: str) -> None:
        """Forward a line that a rank has printed."""
        self.tell(RankPrinted(rank=rank, line=line[:_LINE]))

    def tell_quit(self) -> None:
        """Forward that the user has quit the debugger in a rank."""
        self.tell(Debugging(is_waiting=False, has_quit=True))

    def tell(self, message: Message) -> None:
        """Send any other message."""
        self._connection.send(message)


class DriverSurroundings:
    """What an agent provides to launcher tests; see :class:`allranks.agent.launch.launch.LaunchContext`."""

    def __init__(
        self, session: pytest.Session, assignment: Assignment, telling: _Telling, *, prints_at_once: bool
    ) -> None:
        self._items = {item.nodeid: item for item in filter(is_launcher, session.items)}
        self._config = assignment.config
        self._results = assignment.request.results
        self._code = session.config.rootpath
        self._telling = telling
        self._prints_at_once = prints_at_once

    @contextmanager
    def workplace(self) -> Iterator[Workplace]:
        forget_rank()
        yield Workplace(
            results=self._results,
            journal=self._telling,
            limits=self._config.limits,
            show=_discard_output,
            tell_release=self._tell_release,
            tell_quit=self._telling.tell_quit,
            echo=self._telling.echo if self._prints_at_once else None,
            code=self._code,
        )

    def _tell_release(self, world_size: int) -> None:
        self._telling.tell(Released(nodeid=self._telling.nodeid, world_size=world_size))

    def launch_terms(self, _case: unittest.TestCase) -> LaunchTerms:
        item = self._items[self._telling.nodeid]
        return LaunchTerms(
            nodeid=item.nodeid,
            limit=time_limit(item, self._config),
            may_disagree=may_disagree(item.nodeid, self._config.mixed_skip),
        )

    def rank_terms(self, nodeid: str) -> RankTerms:
        return RankTerms(nodeid=nodeid, seed=seed_of_test(self._config.seed, nodeid))


def _discard_output(_outputs: Mapping[int, Output]) -> None:
    """Do nothing: each rank's output is in its own files."""


class _RepeatWatch:
    """A pytest plugin that separates the launching process's own errors from those its ranks have reported."""

    def __init__(self, telling: _Telling) -> None:
        self._telling = telling

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Note which test is running."""
        self._telling.nodeid = item.nodeid
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Report whether a phase repeats a rank's error, and which errors pytest hides."""
        # pytest takes the exception of a unittest from here.
        info = next(iter(getattr(item, "_excinfo", None) or ()), call.excinfo)
        if info is not None:
            _compare_what_ranks_raise(item, info.value)
        report = yield
        if has_thread_ranks(item):
            self._telling.tell(SharesOutcome(nodeid=item.nodeid))
        # If both a unittest test and its tearDown raise, pytest shows the first error only.
        hidden = [info.value for info in getattr(item, "_excinfo", None) or ()]
        if call.excinfo is not None and getattr(call.excinfo.value, OF_RANKS_ATTRIBUTE, False):
            self._telling.tell(RepeatsRanks(nodeid=item.nodeid, when=call.when))
        for error in hidden:
            if not getattr(error, OF_RANKS_ATTRIBUTE, False):
                self._telling.tell(HiddenError(nodeid=item.nodeid, phase=_hidden(error)))
        return report


def _compare_what_ranks_raise(item: pytest.Item, error: BaseException) -> None:
    """Have ``xfail(raises=...)`` mean what a rank raised: here each failure of a rank is one class of error."""
    expected = item.stash.get(xfailed_key, None)
    if expected is not None and isinstance(error, RankFailureError) and isinstance(expected.raises, type | tuple):
        kinds = expected.raises if isinstance(expected.raises, tuple) else (expected.raises,)
        is_meant = any(kind.__name__ in error.raised for kind in kinds)
        item.stash[xfailed_key] = replace(expected, raises=None if is_meant else ())


def _hidden(error: BaseException) -> Phase:
    info = pytest.ExceptionInfo.from_exception(error)
    return Phase(
        when="teardown",
        outcome=Outcome.ERRORED,
        duration=0.0,
        message=shorten(headline(info.exconly(tryshort=True)), MESSAGE_LIMIT),
        text=shorten(str(info.getrepr(style="long"))),
    )

"""Ranks that a test starts itself: forks of the launching process, which supervises them."""

import os
import unittest
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn, Protocol

from allranks.agent import linux
from allranks.agent.channel import RankEvent, RankExit, RankReport, RunTest, StepEnded
from allranks.agent.diagnose.stacks import StackFile
from allranks.agent.diagnose.step_outcome import Step, failed_start, outcome_records
from allranks.agent.gangs.gang import SKIP_GRACES, Deadlines, Gang
from allranks.agent.gangs.local_ranks import (
    UNKNOWN_STATUS,
    Echo,
    LocalRanks,
    RankProcess,
    Stop,
    fork_ranks,
    stack_files,
)
from allranks.agent.job_end import JobEnd
from allranks.agent.launch.launched_rank import LaunchedRank, Place, RankTerms, be_launched_rank
from allranks.agent.orphans import KilledOrphan, Mark
from allranks.agent.output import Output
from allranks.agent.rank.imports import preload
from allranks.agent.rank.rank_setup import flush_output
from allranks.agent.record_stream import Journal
from allranks.protocol.config import TimeLimit, TimeLimits
from allranks.protocol.outcomes import Outcome

Excuse = Callable[[int, int], bool]
"""Returns whether the test expects the end of a process, given its rank and exit status."""


def excuse_nothing(_rank: int, _status: int) -> bool:
    """Treat any end of a rank in mid-test as a crash."""
    return False


def _ignore_release(_world_size: int) -> None:
    """Do nothing: without a supervisor, only the launching process enforces time limits."""


def _ignore_quit() -> None:
    """Do nothing: the debugger of a session without an agent ends that session itself."""


@dataclass(frozen=True, kw_only=True)
class LaunchTerms:
    """How one launcher test is run."""

    nodeid: str
    limit: TimeLimit  # its time limit for the ranks
    may_disagree: bool = False  # some ranks may skip while others run


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """Where ranks are launched from."""

    results: Path  # folder of the ranks' files
    journal: Journal  # receives their outcomes
    limits: TimeLimits
    show: Callable[[Mapping[int, Output]], None]  # receives each rank's output after a step
    # Called with the number of ranks when they get a test: its time limit starts then.
    tell_release: Callable[[int], None] = _ignore_release
    tell_quit: Callable[[], None] = _ignore_quit  # called when the user has quit a debugger in a rank
    echo: Echo | None = None  # receives each line that a rank prints, at once; None for no echo
    code: Path | None = None  # the folder to which paths in messages are relative


class Launch:
    """The ranks of a launcher test, or of a class of such tests, from their fork to their end."""

    def __init__(
        self, workplace: Workplace, world_size: int, work: Callable[[LaunchedRank], int], first: LaunchTerms
    ) -> None:
        self.world_size = world_size
        self._workplace = workplace
        self._last = first
        self._is_closed = False
        self._resources = ExitStack()
        with ExitStack() as resources:
            resources.enter_context(linux.adopting_orphans())
            never = JobEnd()
            resources.callback(never.close)
            self._ranks = _start_ranks(workplace, world_size, work)
            self._gang = _lead(self._ranks, workplace.limits, never)
            self._resources = resources.pop_all()

    @property
    def pids(self) -> Sequence[int]:
        """The process ids of the ranks."""
        return self._ranks.pids

    @property
    def last(self) -> LaunchTerms:
        """The last test that the ranks got."""
        return self._last

    def excused_status(self, rank: int) -> int | None:
        """The exit status of a rank that ended as the test expects; None if it did not."""
        return self._ranks.excused.get(rank)

    def exit_status(self, rank: int) -> int | None:
        """The exit status of a rank, negative for a signal; None while it lives."""
        return self._ranks.exit_status(rank)

    def wait_for_end(self, rank: int, timeout: float | None) -> None:
        """Wait until the process of a rank has ended; :meth:`wait` tells what that means for the test."""
        self._ranks.wait_for_end(rank, timeout)

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank, if it lives."""
        self._ranks.signal(rank, number)

    def start(self) -> Step:
        """Wait until each rank is ready; if one could not start, or skipped, that is the outcome of the first test."""
        step = self._supervise(self._gang.start)
        first = step.primary_failure or step.first_skip
        if first is None:
            return step
        failed = failed_start(step, first)
        self.release(self._last)
        self._record(failed)
        return failed

    def wait(self, excuse: Excuse = excuse_nothing) -> Step:
        """Wait for one report of each rank, all of which run their only test without a command."""
        self._ranks.excuse, self._ranks.nodeid = excuse, self._last.nodeid
        step = self._supervise(lambda: self._gang.watch(self._deadlines(self._last), self._last.nodeid))
        self._record(step)
        return step

    def run(self, terms: LaunchTerms, index: int) -> Step:
        """Have each rank run the test with this index, which both sides know, wait for all, and compare their calls."""
        self.release(terms)
        step = self._supervise(
            lambda: self._gang.run(RunTest(index=index, nodeid=terms.nodeid, following=None), self._deadlines(terms))
        )
        step.compare_calls()
        self._record(step)
        return step

    def end(self) -> Step:
        """Have each rank tear down and leave; only errors are recorded, under the last test."""
        step = self._supervise(self._gang.end)
        if step.primary_failure is not None:
            self._record(step)
        return step

    def close(self) -> Sequence[KilledOrphan]:
        """Stop all live ranks and release all resources; a second call does nothing.

        Modules that ranks imported late are preloaded for the ranks of the next launch. Returns processes that outlived
        the rank that started them, and were killed.
        """
        if self._is_closed:
            return []
        self._is_closed = True
        with self._resources:
            left = self._gang.close()
        preload(self._gang.imported)
        return left

    def release(self, terms: LaunchTerms) -> None:
        """Note that the ranks run this test from now on."""
        self._last = terms
        self._workplace.tell_release(self.world_size)

    def _deadlines(self, terms: LaunchTerms) -> Deadlines:
        skip = None if terms.may_disagree else SKIP_GRACES * self._workplace.limits.peer_grace
        return Deadlines(limit=terms.limit, skip=skip)

    def _supervise(self, wait: Callable[[], Step]) -> Step:
        try:
            return wait()
        except BaseException as error:
            # A time-out plugin or Ctrl-C can raise anywhere in the launching process.
            step = self._gang.abort(f"aborted by the launching process: {error!r}")
            self._record(_as_consequence(step))
            raise

    def _record(self, step: Step) -> None:
        outputs = self._gang.take_output(self._last.nodeid)
        for record in outcome_records(step, self._last.nodeid, self.world_size, outputs):
            self._workplace.journal.write(record)
        self._workplace.show(outputs)
        if self._gang.has_quit:
            self._workplace.tell_quit()


def _as_consequence(broken_off: Step) -> Step:
    """A step that the launching process aborted: the aborts of its ranks are consequences of its own error."""
    outcomes = [
        replace(each, consequence=True) if each.outcome is Outcome.ABORTED else each for each in broken_off.outcomes
    ]
    return replace(broken_off, outcomes=outcomes)


def _start_ranks(workplace: Workplace, world_size: int, work: Callable[[LaunchedRank], int]) -> "_LaunchedRanks":
    mark, parent = Mark.of_launch(), os.getpid()

    def rank_main(rank: int, connection: int, board: int) -> NoReturn:
        place = Place(
            rank=rank,
            world_size=world_size,
            results=workplace.results,
            connection=connection,
            board=board,
            parent=parent,
        )
        be_launched_rank(place, work, mark.environment(rank))

    flush_output()
    stacks = stack_files(workplace.results, range(world_size))
    with warnings.catch_warnings():
        # Python 3.12 warns about forking with threads. The danger is held locks, and a rank takes none of its parent's.
        warnings.simplefilter("ignore", DeprecationWarning)
        processes = fork_ranks(range(world_size), rank_main, workplace.echo)
    return _LaunchedRanks(processes, workplace, mark, stacks)


class _LaunchedRanks(LocalRanks):
    """Ranks of a launcher test: their parent may have other children, and the test may expect certain exits."""

    def __init__(
        self, processes: Sequence[RankProcess], workplace: Workplace, mark: Mark, stacks: Mapping[int, StackFile]
    ) -> None:
        super().__init__(processes, workplace.results, self._left_by, stacks=stacks, mark=mark, code=workplace.code)
        self._own_mark = mark
        self.nodeid = ""
        self.excuse: Excuse = excuse_nothing  # decides which exits the test expects
        self.excused: dict[int, int] = {}  # the exit status of each rank that ended so

    def exit_status(self, rank: int) -> int | None:
        """See :meth:`Launch.exit_status`; the gang still has to reap the process."""
        process = self._processes[rank]
        if process.exit_status is not None:
            return process.exit_status
        try:
            end = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        except ChildProcessError:  # code of the test has waited for it
            return UNKNOWN_STATUS
        if end is None:
            return None
        return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status

    def signal(self, rank: int, number: int) -> None:
        self._processes[rank].signal(number)

    def wait_for_end(self, rank: int, timeout: float | None) -> None:
        process = self._processes[rank]
        if process.exit_status is None:
            linux.is_readable(process.pidfd, timeout)

    def _read_exit(self, rank: RankProcess) -> Sequence[RankEvent]:
        return [each for event in super()._read_exit(rank) for each in self._with_excuse(event)]

    def _with_excuse(self, event: RankEvent) -> Sequence[RankEvent]:
        if isinstance(event, RankReport) or not self._is_expected(event):
            return [event]
        passed = StepEnded(nodeid=self.nodeid)
        return [RankReport(rank=event.rank, message=passed, at=event.at), event]

    def _is_expected(self, rank_exit: RankExit) -> bool:
        if rank_exit.status is None or rank_exit.kill_reason or not self.excuse(rank_exit.rank, rank_exit.status):
            return False
        self.excused[rank_exit.rank] = rank_exit.status
        return True

    def _left_by(self, pids: Collection[int]) -> Collection[int]:
        """Processes that the ranks left behind; not other children of this process: a test may have started some."""
        return [pid for pid in linux.children() - set(pids) if self._own_mark.covers(pid, pids)]


class _LaunchedGang(Gang):
    """Ranks that start their only test without a command."""

    def watch(self, deadlines: Deadlines, nodeid: str) -> Step:
        """Wait for one report of each rank on a test."""
        self.ranks_may_leave = True
        return self._supervise(deadlines, Step(nodeid=nodeid))


def _lead(ranks: _LaunchedRanks, limits: TimeLimits, end: JobEnd) -> _LaunchedGang:
    try:
        # Always allowed here: the supervisor of this process has its own limits, so a held rank cannot block the job.
        return _LaunchedGang([ranks], limits=limits, end=end, may_be_debugged=True)
    except BaseException:
        ranks.stop(ranks.ranks, Stop.KILL)
        ranks.close()()
        raise


class LaunchContext(Protocol):
    """What the runner of a launcher test provides: an agent, or a plain pytest or unittest."""

    def workplace(self) -> AbstractContextManager[Workplace]:
        """Where the ranks of a test are launched from, for as long as they live."""

    def launch_terms(self, case: unittest.TestCase) -> LaunchTerms:
        """How the running test is run, for the launching process."""

    def rank_terms(self, nodeid: str) -> RankTerms:
        """A test for its ranks; called in a rank."""

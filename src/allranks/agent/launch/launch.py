"""Starts and supervises the ranks of a multi-process test, which are forks of the launching process."""

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
from allranks.agent.launch.launched_rank import LaunchedRank, RankOptions, RankSpec, run_launched_rank
from allranks.agent.orphans import KilledOrphan, Mark
from allranks.agent.output import Output
from allranks.agent.rank.imports import preload
from allranks.agent.rank.rank_setup import flush_output
from allranks.agent.record_stream import Journal
from allranks.protocol.config import TimeLimit, TimeLimits
from allranks.protocol.outcomes import Outcome

ExpectsExit = Callable[[int, int], bool]
"""Given a rank and its exit status, returns whether the test expects this exit."""


def expect_no_exit(_rank: int, _status: int) -> bool:
    """Treat every exit of a rank during a test as a crash."""
    return False


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """How one multi-process test is run."""

    nodeid: str
    limit: TimeLimit  # time limit of the ranks
    may_disagree: bool = False  # some ranks may skip while others run


class LaunchContext(Journal, Protocol):
    """Connects multi-process tests to their runner: an agent, or plain pytest or unittest.

    It receives the records of the ranks' outcomes.

    Attributes:
        echo: Called immediately with each line that a rank prints.
        code: Paths in messages are relative to this folder.
    """

    echo: Echo | None
    code: Path | None

    @property
    def limits(self) -> TimeLimits:
        """The time limits of the ranks."""

    def results(self) -> AbstractContextManager[Path]:
        """Provide the folder for the files of ranks, which must end within the ``with`` block."""

    def launch_options(self, case: unittest.TestCase) -> LaunchOptions:
        """The options of the running test for the launching process."""

    def rank_options(self, nodeid: str) -> RankOptions:
        """The options of a test for its ranks; called in a rank."""

    def show_output(self, outputs: Mapping[int, Output]) -> None:
        """Show each rank's output after a step."""

    def note_release(self, world_size: int) -> None:
        """Handle that this number of ranks starts a test, whose time limit begins now."""

    def note_quit(self) -> None:
        """Handle that the user has quit a debugger in a rank."""


class Launch:
    """The ranks of a multi-process test, or of a class of such tests, from their start to their end."""

    def __init__(
        self, context: LaunchContext, world_size: int, work: Callable[[LaunchedRank], int], first: LaunchOptions
    ) -> None:
        self.world_size = world_size
        self.last = first  # the test that the ranks started last
        self._context = context
        self._is_closed = False
        self._resources = ExitStack()
        with ExitStack() as resources:
            results = resources.enter_context(context.results())
            resources.enter_context(linux.adopting_orphans())
            never = JobEnd()
            resources.callback(never.close)
            self.ranks = _start_ranks(context, results, world_size, work)
            self._gang = _make_gang(self.ranks, context, never)
            self._resources = resources.pop_all()

    def start(self) -> Step:
        """Wait until all ranks are ready. If one fails or skips, that becomes the outcome of the first test."""
        step = self._supervise(self._gang.start)
        first = step.primary_failure or step.first_skip
        if first is None:
            return step
        failed = failed_start(step, first)
        self.release(self.last)
        self._record(failed)
        return failed

    def wait(self, expects_exit: ExpectsExit = expect_no_exit) -> Step:
        """Wait until each rank has reported its only test, which it starts without a command."""
        self.ranks.expects_exit, self.ranks.nodeid = expects_exit, self.last.nodeid
        step = self._supervise(lambda: self._gang.watch(self._deadlines(self.last), self.last.nodeid))
        self._record(step)
        return step

    def run(self, options: LaunchOptions, index: int) -> Step:
        """Run a test in all ranks, wait for them, and compare their calls; `index` identifies the test in the ranks."""
        self.release(options)
        command = RunTest(index=index, nodeid=options.nodeid, following=None)
        step = self._supervise(lambda: self._gang.run(command, self._deadlines(options)))
        step.compare_calls()
        self._record(step)
        return step

    def end(self) -> Step:
        """Make all ranks tear down and exit; only errors are recorded, for the last test."""
        step = self._supervise(self._gang.end)
        if step.primary_failure is not None:
            self._record(step)
        return step

    def close(self) -> Sequence[KilledOrphan]:
        """Stop the running ranks and release all resources; a second call does nothing.

        Modules that ranks imported during their tests are preloaded for the ranks of the next launch.

        Returns:
            Processes that outlived the rank that started them, and were killed.
        """
        if self._is_closed:
            return []
        self._is_closed = True
        with self._resources:
            left = self._gang.close()
        preload(self._gang.imported)
        return left

    def release(self, options: LaunchOptions) -> None:
        """Report that the ranks start this test."""
        self.last = options
        self._context.note_release(self.world_size)

    def _deadlines(self, options: LaunchOptions) -> Deadlines:
        skip = None if options.may_disagree else SKIP_GRACES * self._context.limits.peer_grace
        return Deadlines(limit=options.limit, skip=skip)

    def _supervise(self, wait: Callable[[], Step]) -> Step:
        try:
            return wait()
        except BaseException as error:
            # A timeout plugin or Ctrl-C can raise anywhere in the launching process.
            step = self._gang.abort(f"aborted by the launching process: {error!r}")
            self._record(_as_consequence(step))
            raise

    def _record(self, step: Step) -> None:
        outputs = self._gang.take_output(self.last.nodeid)
        for record in outcome_records(step, self.last.nodeid, self.world_size, outputs):
            self._context.write(record)
        self._context.show_output(outputs)
        if self._gang.has_quit:
            self._context.note_quit()


def _as_consequence(aborted: Step) -> Step:
    """Mark the aborts of ranks as consequences of the launching process's own error."""
    outcomes = [
        replace(outcome, consequence=True) if outcome.outcome is Outcome.ABORTED else outcome
        for outcome in aborted.outcomes
    ]
    return replace(aborted, outcomes=outcomes)


def _start_ranks(
    context: LaunchContext, results: Path, world_size: int, work: Callable[[LaunchedRank], int]
) -> "LaunchedRanks":
    mark, parent = Mark.of_launch(), os.getpid()

    def rank_main(rank: int, connection: int, call_log: int) -> NoReturn:
        spec = RankSpec(
            rank=rank, world_size=world_size, results=results, connection=connection, call_log=call_log, parent=parent
        )
        run_launched_rank(spec, work, mark.environment(rank))

    flush_output()
    stacks = stack_files(results, range(world_size))
    with warnings.catch_warnings():
        # Python 3.12 warns about forks of processes with threads, which may hold locks. A rank uses no such lock.
        warnings.simplefilter("ignore", DeprecationWarning)
        processes = fork_ranks(range(world_size), rank_main, context.echo)
    return LaunchedRanks(processes, results, mark, stacks, context.code)


class LaunchedRanks(LocalRanks):
    """Ranks of a multi-process test, whose parent may have other children, and which may expect certain exits."""

    def __init__(
        self,
        processes: Sequence[RankProcess],
        results: Path,
        mark: Mark,
        stacks: Mapping[int, StackFile],
        code: Path | None,
    ) -> None:
        def left_behind(pids: Collection[int]) -> Collection[int]:
            """Processes that the ranks left behind; not other children of this process, which the test has started."""
            return [pid for pid in linux.children() - set(pids) if mark.covers(pid, pids)]

        super().__init__(processes, results, left_behind, stacks=stacks, mark=mark, code=code)
        self.nodeid = ""
        self.expects_exit: ExpectsExit = expect_no_exit
        self.expected_exits: dict[int, int] = {}  # the exit status of each rank that exited as expected

    def exit_status(self, rank: int) -> int | None:
        """The exit status of a rank, negative for a signal; None while it is running."""
        process = self._processes[rank]
        if process.exit_status is not None:
            return process.exit_status
        try:
            # WNOWAIT: the gang reaps the process later.
            end = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        except ChildProcessError:  # the test has waited for the process
            return UNKNOWN_STATUS
        if end is None:
            return None
        return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status

    def signal(self, rank: int, number: int) -> None:
        self._processes[rank].signal(number)

    def wait_for_end(self, rank: int, timeout: float | None) -> None:
        """Wait until the process of a rank has ended, at most `timeout` seconds."""
        process = self._processes[rank]
        if process.exit_status is None:
            linux.is_readable(process.pidfd, timeout)

    def _read_exit(self, rank: RankProcess) -> Sequence[RankEvent]:
        return [result for event in super()._read_exit(rank) for result in self._with_expected_pass(event)]

    def _with_expected_pass(self, event: RankEvent) -> Sequence[RankEvent]:
        """Turn an expected exit into a pass."""
        if isinstance(event, RankReport) or not self._is_expected(event):
            return [event]
        passed = StepEnded(nodeid=self.nodeid)
        return [RankReport(rank=event.rank, message=passed, at=event.at), event]

    def _is_expected(self, rank_exit: RankExit) -> bool:
        if rank_exit.status is None or rank_exit.kill_reason or not self.expects_exit(rank_exit.rank, rank_exit.status):
            return False
        self.expected_exits[rank_exit.rank] = rank_exit.status
        return True


class _LaunchedGang(Gang):
    """A gang whose ranks start their only test without a command."""

    def watch(self, deadlines: Deadlines, nodeid: str) -> Step:
        """Wait until each rank has reported the test."""
        self.ranks_may_leave = True
        return self._supervise(deadlines, Step(nodeid=nodeid))


def _make_gang(ranks: LaunchedRanks, context: LaunchContext, end: JobEnd) -> _LaunchedGang:
    try:
        # The supervisor enforces its own limits on this process, so a rank held by a debugger cannot block the job.
        return _LaunchedGang([ranks], limits=context.limits, journal=context, end=end, may_be_debugged=True)
    except BaseException:
        ranks.stop(ranks.ranks, Stop.KILL)
        ranks.close()()
        raise

"""A gang: ranks that are started together, run tests in lockstep under supervision, and end together.

When a test fails or hangs, :meth:`Gang._diagnose` freezes the pending ranks and has their nodes inspect them
(``local_ranks.py``, ``diagnose/stacks.py``), decides which failures are primary (``diagnose/primary_failure.py``) and
stops the ranks. The resulting step (``diagnose/step_outcome.py``) is what the test loop records.
"""

import selectors
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import TypeVar

from allranks.agent import clock, linux
from allranks.agent.call_log import LastCall, compared
from allranks.agent.channel import (
    Debugging,
    End,
    PhasesEnded,
    Progress,
    RankEvent,
    RankExit,
    RankReport,
    Released,
    RunTest,
    StepEnded,
)
from allranks.agent.diagnose.primary_failure import diagnose, explain, locations, waits_for_peers
from allranks.agent.diagnose.step_outcome import (
    Step,
    StepOutcome,
    entered_collectives,
    outcome_of_exit,
    outcome_of_report,
)
from allranks.agent.gangs.local_ranks import Disturb, GangCommand, Inspection, Pending, Ranks, ReadEvents, Stop
from allranks.agent.job_end import JobEnd
from allranks.agent.orphans import KilledOrphan
from allranks.agent.output import Output
from allranks.agent.program import changed_status
from allranks.agent.record_stream import Journal
from allranks.protocol.config import TimeLimit, TimeLimits
from allranks.protocol.outcomes import Outcome, shorten
from allranks.protocol.records import AgentFailed, FailureKind, TestSlow

_Result = TypeVar("_Result")

TERM_GRACE = 1.0
"""Seconds between TERM and KILL: enough for an exit handler, and too short to matter."""

KILL_GRACE = 10.0
"""Seconds after KILL: a process survives it while a call into a driver or a file system hangs."""

SKIP_GRACES = 5
"""Multiple of ``peer_grace`` for the peers of a rank that skipped: they may skip as well, or hang waiting for it."""

END_GRACE = 3.0
"""Seconds to wait for the job's end after SIGTERM has ended a rank: a scheduler that cancels a job signals all of its
processes, in any order."""

STORE_ROUNDING = 2.0
"""Seconds that a rendezvous may exceed its limit: torch's stores wait for whole seconds (measured with 2.13)."""


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """The time limits of a step."""

    limit: TimeLimit  # from its start
    during: str = ""  # what the ranks do, as in "while it joined", if the step is not a test
    after_release: TimeLimit | None = None  # from a launcher's report that its ranks start; None for `limit`
    skip: float | None = None  # seconds for the peers of a rank that skipped; None for all of `limit`
    plugin_limit: TimeLimit | None = None  # the limit that pytest-timeout enforces in the ranks


class Gang:
    """Ranks in lockstep.

    Args:
        ranks: The ranks of each node.
        limits: Time limits.
        journal: Gets a record when a test is slow: after half of the process group's limit, as a hang in a collective
            ends at that limit, whatever the test's own limit is; and again whenever the test's time has doubled.
        end: The end of the job.
        may_be_debugged: A debugger may wait for commands in one of the ranks, whose reports about it pause the clock.
        start_up: Seconds that the ranks get before they join the process group.

    Attributes:
        imported: Modules that its ranks imported late, in order, for the next gang to import before its forks.
        ranks_may_leave: A rank whose test is over may exit before its peers' are.
        has_quit: The user has quit the debugger.
        session_problem: The first failure of a rank to end its own pytest session.
    """

    def __init__(  # noqa: PLR0913 - all but the ranks are passed by name
        self,
        ranks: Sequence[Ranks],
        *,
        limits: TimeLimits,
        journal: Journal,
        end: JobEnd,
        may_be_debugged: bool = False,
        start_up: float = 0.0,
    ) -> None:
        self.imported: dict[str, None] = {}
        self.ranks_may_leave = False
        self.has_quit = False
        self.session_problem: AgentFailed | None = None
        self._ranks = ranks
        self._limits = limits
        self._journal = journal
        self._job_end = end
        self._may_be_debugged = may_be_debugged
        self._start_up = start_up
        self._alive = {rank for node_ranks in ranks for rank in node_ranks.ranks}
        self._exits: dict[int, RankExit] = {}
        self._noted_exits: set[int] = set()
        self._step = Step()
        self._pending: set[int] = set()
        self._clock: _Clock | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(end, selectors.EVENT_READ, self._ignore_job_end)
        for node_ranks in ranks:
            node_ranks.watch(self._selector)

    def start(self) -> Step:
        """Wait until every rank has joined the process group."""
        margin = self._start_up + self._limits.peer_grace + STORE_ROUNDING
        limit = self._limits.limit("process_group").plus(margin)
        imported = "imported its file again and " if self._start_up else ""
        return self._supervise(Deadlines(limit=limit, during=f"while it {imported}joined the process group"), Step())

    def run(self, command: RunTest, deadlines: Deadlines) -> Step:
        """Have all ranks run a test, and wait for the last of them."""
        step = Step(nodeid=command.nodeid, plugin_limit=deadlines.plugin_limit)  # begins before any rank does
        self._send(command)
        return self._supervise(deadlines, step)

    @contextmanager
    def disturbed(self, how: str) -> Iterator[None]:
        """Have plug-ins disturb the ranks during a block; if `how` is empty, nothing is disturbed."""
        if not how:
            yield
            return
        self._send(Disturb(how=how))
        try:
            yield
        finally:
            self._send(Disturb(how=""))

    def end(self, session_end: float = 0.0) -> Step:
        """Have the ranks tear down, end their own pytest sessions within `session_end` seconds, and exit."""
        self._send(End(is_condemned=False))
        during = "while tearing down fixtures and the process group"
        step = self._supervise(Deadlines(limit=self._limits.limit("process_group"), during=during), Step())
        self._send(End(is_condemned=False))
        self._wait_for_exits(max(TERM_GRACE, session_end), self._alive)
        late = dict.fromkeys(self._alive, session_end)
        self._kill_alone()
        if session_end:
            problems = (_session_problem(own, late.get(rank)) for rank, own in sorted(self._exits.items()))
            self.session_problem = next(filter(None, problems), None)
        return step

    def end_after_failure(self) -> None:
        """Give fixtures the peer grace to tear down, then stop all ranks."""
        self._send(End(is_condemned=True))
        grace = self._limits.limit("peer_grace")
        timer = self._clock = _Clock(Deadlines(limit=grace), grace)
        while self._alive and not self._job_end.is_over and (remaining := timer.remaining(self._step)) > 0:
            self._handle_events(min(remaining, self._job_end.remaining()))
        self._stop(self._alive)

    def abort(self, reason: str) -> Step:
        """Stop every rank, for a reason outside of the gang; return the step, with the places of the pending ranks."""
        self._handle_events(0.0)  # a report that was under way still counts
        pending, self._pending = self._pending, set()
        self._signal(Stop.FREEZE, pending)
        hangs = self._inspect(pending, briefly=True).hangs if pending else {}
        self._stop(self._alive)
        for rank in sorted(pending):
            message = f"{reason}{hangs[rank].stacks.words_for_a_stop}"
            aborted = StepOutcome(rank=rank, outcome=Outcome.ABORTED, at=clock.now(), message=message, observed=True)
            self._step.add(aborted)
        return self._step

    def stop_at_job_limit(self, reason: str) -> Step:
        """Stop every rank because the job's time is up; return the step, with the location of each pending rank."""
        self._handle_events(0.0)
        if self._pending:
            self._diagnose(reason, None)
        self._stop(self._alive)
        self._step.attribute_secondary_failures(None)
        return self._step

    def take_output(self, title: str) -> Mapping[int, Output]:
        outputs = self._request(lambda node_ranks: node_ranks.take_output(title))
        return {rank: output for node_outputs in outputs for rank, output in node_outputs.items()}

    def close(self) -> Sequence[KilledOrphan]:
        """End all live ranks, close all descriptors, and kill and return descendants that outlived their rank."""
        if self._step.has_failed:
            self._stop(self._alive)
        self._kill_alone()
        self._selector.close()
        return [orphan for orphans in self._request(lambda node_ranks: node_ranks.close()) for orphan in orphans]

    def _send(self, command: GangCommand) -> None:
        for node_ranks in self._ranks:
            node_ranks.send(command)

    def _request(self, request: Callable[[Ranks], Pending[_Result]]) -> list[_Result]:
        """Send a request to all nodes, and then wait for their results."""
        pending = [request(node_ranks) for node_ranks in self._ranks]
        return [wait() for wait in pending]

    def _supervise(self, deadlines: Deadlines, step: Step) -> Step:
        """Wait until each rank has reported or ended, or its time is up; then diagnose the step."""
        self._step = step
        for rank, rank_exit in self._exits.items():
            if rank not in self._noted_exits:
                self._noted_exits.add(rank)
                step.add(outcome_of_exit(rank_exit, step))
        self._pending = set(self._alive)
        timer = self._clock = _Clock(deadlines, self._limits.limit("peer_grace"), self._limits.process_group / 2)
        while self._pending:
            if timer.is_newly_slow():
                self._report_slow_test(timer.seconds)
            if (remaining := timer.remaining(step)) > 0:
                self._wait(min(remaining, timer.until_slow))
            elif not timer.is_about_a_skip or all(map(waits_for_peers, self._inspect(self._pending).hangs.values())):
                break
            else:
                # A rank that does not wait for its peers may be about to skip as well.
                timer.extend()
        first_skip = None if deadlines.skip is None else step.first_skip
        calls = self._diagnose(timer.reason, first_skip)
        self._wait_for_job_end(step)
        if step.has_failed:
            explain(step, calls, first_skip)
        step.compare_subtests()
        return step

    def _report_slow_test(self, seconds: float) -> None:
        """Report where the ranks are that have run the current test for so long; a launcher reports its own ranks."""
        step = self._step
        if step.nodeid and not step.has_launched:
            hangs = self._inspect(self._pending, briefly=True).hangs
            slow = TestSlow(nodeid=step.nodeid, seconds=seconds, ended=step.ended, locations=locations(hangs))
            self._journal.write(slow)

    def _wait_for_job_end(self, step: Step) -> None:
        """If SIGTERM has ended a rank, wait a moment for the end of the job."""
        last = step.last_termination
        while last is not None:
            left = last + END_GRACE - clock.now()
            self._wait(max(0.0, left))
            if left <= 0:
                return

    def _diagnose(self, reason: str, first_skip: StepOutcome | None) -> Mapping[int, Sequence[LastCall]]:
        """Locate and stop the pending ranks, and decide which failures are primary.

        Returns:
            The calls that decide; none if nothing has failed.
        """
        step = self._step
        if not (self._pending or step.has_failed):
            return {}
        self._signal(Stop.FREEZE, self._pending)
        inspection = self._inspect(self._pending)
        step.collectives = entered_collectives(inspection.calls, step.began, clock.monotonic_ns())
        calls = {rank: compared(own) for rank, own in inspection.calls.items()}
        pending, self._pending = self._pending, set()
        self._stop(pending)
        diagnose(step, inspection.hangs, calls, reason=reason, first_skip=first_skip)
        return calls

    def _inspect(self, ranks: Collection[int], *, briefly: bool = False) -> Inspection:
        def inspect(own: Ranks) -> Pending[Inspection]:
            return own.inspect([rank for rank in own.ranks if rank in ranks], briefly=briefly)

        results = self._request(inspect)
        return Inspection(
            hangs={rank: hang for result in results for rank, hang in result.hangs.items()},
            calls={rank: calls for result in results for rank, calls in result.calls.items()},
        )

    def _wait(self, timeout: float) -> None:
        """Handle the next events; raises if the job is over."""
        self._handle_events(min(timeout, self._job_end.remaining()))
        self._job_end.check()

    def _handle_events(self, timeout: float) -> None:
        """Wait for events up to `timeout` seconds, and handle them in the order of their times."""
        readers: list[ReadEvents] = [key.data for key, _ in self._selector.select(timeout)]
        events = [event for read_events in readers for event in read_events()]
        for event in sorted(events, key=lambda event: event.at):
            self._handle(event)

    def _ignore_job_end(self) -> Sequence[RankEvent]:
        """Stop watching for the job's end, which :meth:`_wait` checks: it must not wake up loops that stop ranks."""
        self._selector.unregister(self._job_end)
        return ()

    def _handle(self, event: RankEvent) -> None:
        """Add a rank's event to the step, unless the rank's step has ended."""
        if isinstance(event, RankExit):
            self._handle_exit(event)
        elif isinstance(event.message, TestSlow):
            self._journal.write(event.message)
        elif isinstance(event.message, Debugging):
            self._pause_clock(event.rank, is_debugged=event.message.is_waiting)
            self.has_quit = self.has_quit or event.message.has_quit
        else:
            self._handle_progress(event, event.message)

    def _handle_exit(self, rank_exit: RankExit) -> None:
        rank, step = rank_exit.rank, self._step
        self._alive.discard(rank)
        self._exits[rank] = rank_exit
        self._pause_clock(rank, is_debugged=False)
        # In a test a peer may still need a rank whose own part is over, as the callee of an RPC.
        is_needed = bool(self._pending and step.nodeid) and not self.ranks_may_leave
        if rank in self._pending or is_needed:
            self._noted_exits.add(rank)
            self._add(outcome_of_exit(rank_exit, step))

    def _handle_progress(self, event: RankReport, message: Progress) -> None:
        step = self._step
        if isinstance(message, StepEnded):
            self.imported.update(dict.fromkeys(message.imported))
        if message.nodeid != step.nodeid or event.rank not in self._pending:
            # About another test, or from a rank whose step has ended: it changes nothing.
            return
        if event.has_foreign_data:
            step.foreign_senders.add(event.rank)
        step.store(event.rank, message)
        match message:
            case Released():
                if self._clock is not None:
                    self._clock.restart()
            case StepEnded() | PhasesEnded(has_failed=True):
                self._add(outcome_of_report(event, message, step))

    def _add(self, outcome: StepOutcome) -> None:
        self._step.add(outcome)
        if outcome.is_final:
            self._pending.discard(outcome.rank)

    def _pause_clock(self, rank: int, *, is_debugged: bool) -> None:
        if self._clock is not None and self._may_be_debugged:
            self._clock.pause(rank, is_debugged=is_debugged)

    def _kill_alone(self) -> None:
        """TERM, then KILL only the ranks, whose part is over: what they leave behind outlives them, and is reported."""
        for how, grace in ((Stop.TERM, TERM_GRACE), (Stop.KILL_ALONE, KILL_GRACE)):
            self._signal(how, self._alive)
            self._wait_for_exits(grace, self._alive)

    def _stop(self, ranks: Collection[int]) -> None:
        """TERM, then KILL ranks with all that they have started, and wait until they are gone."""
        self._signal(Stop.FREEZE, ranks)
        for how, grace in ((Stop.TERM, TERM_GRACE), (Stop.KILL, KILL_GRACE)):
            self._signal(how, ranks)
            self._wait_for_exits(grace, ranks)

    def _signal(self, how: Stop, ranks: Collection[int]) -> None:
        for node_ranks in self._ranks:
            node_ranks.stop([rank for rank in node_ranks.ranks if rank in ranks and rank in self._alive], how)

    def _wait_for_exits(self, timeout: float, ranks: Collection[int]) -> None:
        """Wait until these ranks are gone, and handle other events meanwhile."""
        awaited = set(ranks)
        deadline = clock.monotonic() + timeout
        while awaited & self._alive and (remaining := deadline - clock.monotonic()) > 0:
            self._handle_events(remaining)


def _session_problem(rank_exit: RankExit, overdue: float | None) -> AgentFailed | None:
    """Return the failure of a rank to end its own pytest session, all of whose tests had passed.

    Args:
        rank_exit: How it ended.
        overdue: The seconds in which it did not end by itself; None if it did.
    """
    rank, status = rank_exit.rank, rank_exit.status
    if overdue is not None:
        message = f"Rank {rank} did not end its pytest session within {overdue:g} s."
    elif status is not None and status < 0:
        message = f"Rank {rank} was killed by {linux.signal_name(-status)} while ending its pytest session."
    elif status:
        message = changed_status(0, status, f" on rank {rank}")
    else:
        return None
    text = shorten(rank_exit.stacks.text or rank_exit.output.stderr)
    return AgentFailed(message=message, text=text, kind=FailureKind.SUITE)


_DEBUGGER_POLL = 1000.0
"""Seconds between checks while a debugger waits for a command."""


class _Clock:
    """Decides when a step's time is up: at its limit, or sooner after a failure or a skip.

    Attributes:
        reason: The limit that applies now, as the reason why ranks are stopped.
    """

    def __init__(self, deadlines: Deadlines, peer_grace: TimeLimit, slow_after: float = inf) -> None:
        self._deadlines = deadlines
        self._limit = deadlines.limit
        self._peer_grace = peer_grace
        self._slow_after = slow_after
        self._has_failed = False
        self._has_skipped = False
        self._debugged: set[int] = set()
        self._start()

    def _start(self) -> None:
        self._began = clock.monotonic()
        self._deadline = self._limit_end = self._began + self._limit.seconds
        self._next_slow = self._slow_after
        self.reason = f"not finished after {self._limit.words(self._deadlines.during)}"

    def pause(self, rank: int, *, is_debugged: bool) -> None:
        """Pause while a debugger waits for a command; restart when it no longer does, or its rank has ended."""
        if is_debugged == (rank in self._debugged):
            return
        self._debugged ^= {rank}
        self._has_failed = self._has_skipped = False
        self._start()

    def restart(self) -> None:
        """Restart, unless a failure or a skip has already shortened the step."""
        if not self._has_failed and not self._has_skipped:
            self._limit = self._deadlines.after_release or self._deadlines.limit
            self._start()

    def remaining(self, step: Step) -> float:
        """Return the seconds left, fewer after a failure or a skip in the step."""
        if self._debugged:
            return _DEBUGGER_POLL
        now = clock.monotonic()
        if step.has_failed and not self._has_failed:
            self._has_failed = True
            if now + self._peer_grace.seconds < self._deadline:
                self._deadline = now + self._peer_grace.seconds
                self.reason = f"stopped {self._peer_grace.words(f'after {step.first_failure}')}"
        if step.has_skipped and not self._has_skipped and self._deadlines.skip is not None:
            self._has_skipped = True
            self._deadline = min(self._deadline, now + self._deadlines.skip)
        return self._deadline - now

    @property
    def seconds(self) -> float:
        """The time since the step began."""
        return clock.monotonic() - self._began

    def is_newly_slow(self) -> bool:
        """Return whether the step is slow, or its time has doubled since this was last true."""
        if self._debugged or self.seconds < self._next_slow:
            return False
        self._next_slow *= 2
        return True

    @property
    def until_slow(self) -> float:
        """The seconds until the step is newly slow."""
        return inf if self._debugged else max(0.0, self._next_slow - self.seconds)

    @property
    def is_about_a_skip(self) -> bool:
        """Whether the time is up only because a rank has skipped."""
        return self._has_skipped and not self._has_failed and clock.monotonic() < self._limit_end

    def extend(self) -> None:
        """Extend the time of the peers of a rank that skipped."""
        self._deadline = min(self._limit_end, clock.monotonic() + (self._deadlines.skip or 0.0))

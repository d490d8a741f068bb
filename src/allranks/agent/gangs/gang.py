"""A gang: the ranks that run together. Started together, supervised from outside, and ended together."""

import selectors
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
from allranks.agent.diagnose.blame import (
    Blame,
    given_up,
    name_crossing,
    name_parting,
    odd_ones_out,
    strays,
    waits_for_peers,
)
from allranks.agent.diagnose.step_outcome import Step, StepOutcome, ended, entered, reported
from allranks.agent.gangs.local_ranks import Answer, Disturb, Examination, Look, Order, Ranks, Stop
from allranks.agent.job_end import JobEnd
from allranks.agent.orphans import KilledOrphan
from allranks.agent.output import Output
from allranks.agent.program import changed_status
from allranks.protocol.config import TimeLimit, TimeLimits
from allranks.protocol.outcomes import Outcome, shorten
from allranks.protocol.records import AgentFailed, FailureKind

_Found = TypeVar("_Found")

TERM_GRACE = 1.0
"""Seconds between TERM and KILL: enough for an exit handler, and too short to matter."""

KILL_GRACE = 10.0
"""Seconds after KILL: a process survives it while a call into a driver or a file system hangs."""

SKIP_GRACES = 5
"""Multiple of ``peer_grace`` for the peers of a rank that skipped: they may skip as well, or wait for it in vain."""

END_GRACE = 3.0
"""Seconds after SIGTERM has ended a rank in which the job's end makes that a part of it: a scheduler that cancels a job
signals all of its processes, in any order."""

ROUNDED_UP = 2.0
"""Seconds that a rendezvous may take beyond its limit: torch's stores wait for whole seconds (measured with 2.13)."""


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """The time limits of a step."""

    limit: TimeLimit  # the time from its start
    during: str = ""  # the activity of the ranks, in words, if it is not a test
    anew: TimeLimit | None = None  # the time from a rank's report that restarts the clock; None for `limit`
    skip: float | None = None  # seconds for the peers of a rank that skipped; None for all of `limit`
    of_plugin: TimeLimit | None = None  # the limit that pytest-timeout enforces in the ranks; None for none


class Gang:
    """Ranks in lockstep.

    Args:
        ranks: The ranks of each node.
        limits: Time limits.
        end: When the job is over.
        may_be_held: A debugger may wait for commands in one of the ranks, whose reports about it stop the clock.
        start_up: Seconds that the ranks get before they join the process group.

    Attributes:
        imported: Modules that its ranks imported late, for the next gang to import before its forks; in order.
        ranks_may_leave: A rank whose test is over may exit before its peers' are.
        has_quit: The user has quit the debugger.
        session_problem: What went wrong when ranks ended pytest sessions of their own; None for nothing.
    """

    def __init__(
        self,
        ranks: Sequence[Ranks],
        *,
        limits: TimeLimits,
        end: JobEnd,
        may_be_held: bool = False,
        start_up: float = 0.0,
    ) -> None:
        self._ranks = ranks
        self.ranks_may_leave = False
        self.has_quit = False
        self._may_be_held = may_be_held
        self._start_up = start_up
        self.session_problem: AgentFailed | None = None
        self._limits = limits
        self._alive = {rank for node_ranks in ranks for rank in node_ranks.ranks}
        self._exits: dict[int, RankExit] = {}
        self._noted_exits: set[int] = set()
        self.imported: dict[str, None] = {}
        self._step = Step()
        self._pending: set[int] = set()
        self._clock: _Clock | None = None
        self._job_end = end
        self._selector = selectors.DefaultSelector()
        self._selector.register(end, selectors.EVENT_READ, self._see_the_end)
        for node_ranks in ranks:
            node_ranks.watch(self._selector)

    def start(self) -> Step:
        """Wait until every rank has joined the process group."""
        margin = self._start_up + self._limits.peer_grace + ROUNDED_UP
        limit = self._limits.limit("process_group").plus(margin)
        imported = "imported its file again and " if self._start_up else ""
        return self._supervise(Deadlines(limit=limit, during=f"while it {imported}joined the process group"), Step())

    def run(self, command: RunTest, deadlines: Deadlines) -> Step:
        """Release one test and wait for its last rank."""
        step = Step(nodeid=command.nodeid, plugin_limit=deadlines.of_plugin)  # begins before any rank does
        self._send(command)
        return self._supervise(deadlines, step)

    @contextmanager
    def disturbed(self, how: str) -> Iterator[None]:
        """Have plug-ins disturb its ranks for the length of a block; not if the text is empty."""
        if not how:
            yield
            return
        self._send(Disturb(how=how))
        try:
            yield
        finally:
            self._send(Disturb(how=""))

    def end(self, session_end: float = 0.0) -> Step:
        """Let the ranks tear down, end pytest sessions of their own in so many seconds, and exit; stop late ones."""
        self._send(End(is_condemned=False))
        during = "while fixtures and process group were torn down"
        step = self._supervise(Deadlines(limit=self._limits.limit("process_group"), during=during), Step())
        self._send(End(is_condemned=False))
        self._wait_for_ends(max(TERM_GRACE, session_end), self._alive)
        late = dict.fromkeys(self._alive, session_end)
        self._end_alone()
        if session_end:
            problems = (_problem_at_session_end(each, late.get(rank)) for rank, each in sorted(self._exits.items()))
            self.session_problem = next(filter(None, problems), None)
        return step

    def condemn(self) -> None:
        """End a gang after a bad outcome: fixtures get the peers' grace to tear down, then all ranks are stopped."""
        self._send(End(is_condemned=True))
        grace = self._limits.limit("peer_grace")
        timer = self._clock = _Clock(Deadlines(limit=grace), grace)
        while self._alive and not self._job_end.is_over and (remaining := timer.remaining(self._step)) > 0:
            self._look(min(remaining, self._job_end.remaining()))
        self._stop(self._alive)

    def abort(self, reason: str) -> Step:
        """Stop every rank at once, for a reason outside of the gang, in words; return the aborted step."""
        self._look(0.0)  # a report that was under way still counts
        pending, self._pending = self._pending, set()
        self._stop(self._alive)
        for rank in sorted(pending):
            aborted = StepOutcome(rank=rank, outcome=Outcome.ABORTED, at=clock.now(), message=reason, observed=True)
            self._step.note(aborted)
        return self._step

    def give_up(self, reason: str) -> Step:
        """Stop every rank because there is no time left for the gang.

        Returns that step, with the place of each rank that had not ended it, and the rank that others waited for.
        """
        self._look(0.0)
        if self._pending:
            self._settle(reason, None)
        self._stop(self._alive)
        self._step.explain_symptoms(None)
        return self._step

    def take_output(self, title: str) -> Mapping[int, Output]:
        outputs = self._ask(lambda node_ranks: node_ranks.take_output(title))
        return {rank: output for of_node in outputs for rank, output in of_node.items()}

    def close(self) -> Sequence[KilledOrphan]:
        """End all live ranks, close all descriptors, and end and return descendants that outlived their rank."""
        if self._step.has_gone_wrong:
            self._stop(self._alive)
        self._end_alone()
        self._selector.close()
        return [process for left in self._ask(lambda node_ranks: node_ranks.close()) for process in left]

    def _send(self, order: Order) -> None:
        for node_ranks in self._ranks:
            node_ranks.send(order)

    def _ask(self, question: Callable[[Ranks], Answer[_Found]]) -> list[_Found]:
        """The answers of all nodes, which are all asked before the first answer is waited for."""
        answers = [question(node_ranks) for node_ranks in self._ranks]
        return [answer() for answer in answers]

    def _supervise(self, deadlines: Deadlines, step: Step) -> Step:
        """Wait until each rank has reported, ended or been given up."""
        self._step = step
        for rank, rank_exit in self._exits.items():
            if rank not in self._noted_exits:
                self._noted_exits.add(rank)
                step.note(ended(rank_exit, step))
        self._pending = set(self._alive)
        timer = self._clock = _Clock(deadlines, self._limits.limit("peer_grace"))
        while self._pending:
            if (remaining := timer.remaining(step)) > 0:
                self._wait(remaining)
            elif not timer.is_about_a_skip or all(map(waits_for_peers, self._examine(self._pending).hangs.values())):
                break
            else:
                # A rank that does not wait for its peers may be about to skip as well.
                timer.go_on()
        skipper = None if deadlines.skip is None else step.skipper
        calls = self._settle(timer.reason, skipper)
        self._wait_for_the_jobs_end(step)
        if step.has_gone_wrong:
            self._explain(step, skipper, calls)
        step.compare_subtests()
        return step

    def _wait_for_the_jobs_end(self, step: Step) -> None:
        """If SIGTERM has ended a rank, wait a moment for the end of the job."""
        last = step.last_termination
        while last is not None:
            left = last + END_GRACE - clock.now()
            self._wait(max(0.0, left))
            if left <= 0:
                return

    def _explain(self, step: Step, skipper: StepOutcome | None, calls: Mapping[int, Sequence[LastCall]]) -> None:
        """Explain a step that went wrong by the ranks' last calls."""
        if step.cause is not None:
            death = step.cause.stacks if step.cause.outcome is Outcome.CRASHED else None
            step.blame_strays(strays(calls, step.cause.rank, death))
        odd, cause = odd_ones_out(calls), step.cause
        # A rank that timed out in another group's call is a cause because of that call, and so are all in a circle.
        is_circle = all(each.outcome is Outcome.TIMED_OUT for each in step.outcomes)
        is_odd = cause is not None and cause.outcome is Outcome.TIMED_OUT and cause.observed and cause.rank in odd
        may_part = cause is None or is_odd or is_circle
        step.explain_symptoms(skipper, odd)
        step.add(name_crossing(calls) or (name_parting(calls) if may_part else "") or step.name_unmatched())

    def _wait(self, timeout: float) -> None:
        """Process the next events, in their order in time; return when the time is up."""
        self._look(min(timeout, self._job_end.remaining()))
        self._job_end.check()

    def _look(self, timeout: float) -> None:
        """Like :meth:`_wait`, but without the check for the job's end, as when the ranks are being stopped anyway."""
        self._take(self._selector.select(timeout))

    def _take(self, keys: Iterable[tuple[selectors.SelectorKey, int]]) -> None:
        looks: list[Look] = [key.data for key, _ in keys]
        events = [event for look in looks for event in look()]
        for event in sorted(events, key=lambda each: each.at):
            self._note(event)

    def _see_the_end(self) -> Sequence[RankEvent]:
        """Stop watching for the hang-up: :meth:`_wait` checks for it, and loops that stop ranks must not wake on it."""
        self._selector.unregister(self._job_end)
        return ()

    def _note(self, event: RankEvent) -> None:
        """Add a rank's event to the step, unless the rank's step has ended."""
        if isinstance(event, RankExit):
            self._note_exit(event)
        elif isinstance(event.message, Debugging):
            self._hold(event.rank, is_held=event.message.is_waiting)
            self.has_quit = self.has_quit or event.message.has_quit
        else:
            self._note_progress(event, event.message)

    def _note_exit(self, rank_exit: RankExit) -> None:
        rank, step = rank_exit.rank, self._step
        self._alive.discard(rank)
        self._exits[rank] = rank_exit
        self._hold(rank, is_held=False)
        # In a test a peer may still need a rank whose own part is over, as the callee of an RPC.
        is_needed = bool(self._pending and step.nodeid) and not self.ranks_may_leave
        if rank in self._pending or is_needed:
            self._noted_exits.add(rank)
            self._add(ended(rank_exit, step))

    def _note_progress(self, event: RankReport, message: Progress) -> None:
        step = self._step
        if isinstance(message, StepEnded):
            self.imported.update(dict.fromkeys(message.imported))
        if message.nodeid != step.nodeid or event.rank not in self._pending:
            # About another test, or from a rank whose step has ended: it changes nothing.
            return
        if event.has_foreign_data:
            step.strangers.add(event.rank)
        step.take(event.rank, message)
        match message:
            case Released():
                self._restart_clock()
            case StepEnded() | PhasesEnded(has_failed=True):
                self._add(reported(event, message, step))

    def _add(self, outcome: StepOutcome) -> None:
        self._step.note(outcome)
        if outcome.is_final:
            self._pending.discard(outcome.rank)

    def _hold(self, rank: int, *, is_held: bool) -> None:
        if self._clock is not None and self._may_be_held:
            self._clock.hold(rank, is_held=is_held)

    def _restart_clock(self) -> None:
        if self._clock is not None:
            self._clock.restart()

    def _settle(self, reason: str, skipper: StepOutcome | None) -> Mapping[int, Sequence[LastCall]]:
        """Find out where the pending ranks are, stop them, and settle whose fault each bad outcome is.

        Returns the calls by which that was settled; none if nothing has gone wrong.
        """
        step = self._step
        if not (self._pending or step.has_gone_wrong):
            return {}
        self._stop_by(Stop.FREEZE, self._pending)
        found = self._examine(self._pending)
        hangs = found.hangs
        step.collectives = entered(found.calls, step.began, clock.monotonic_ns())
        calls = {rank: compared(each) for rank, each in found.calls.items()}
        out = set(self._pending)
        self._pending = set()
        self._stop(out)
        blame = Blame(step, hangs, calls)
        step.weigh_symptoms(blame.follows)
        if hangs:
            late = blame.late(is_over=step.has_gone_wrong)
            for outcome in given_up(step, hangs, late, reason=reason, skipper=skipper):
                step.note(outcome)
        return calls

    def _examine(self, ranks: Collection[int]) -> Examination:
        found = self._ask(lambda of_node: of_node.examine([rank for rank in of_node.ranks if rank in ranks]))
        return Examination(
            hangs={rank: hang for each in found for rank, hang in each.hangs.items()},
            calls={rank: calls for each in found for rank, calls in each.calls.items()},
        )

    def _end_alone(self) -> None:
        """TERM, then KILL the ranks whose part is over: what they leave behind outlives them, and is reported."""
        for how, grace in ((Stop.TERM, TERM_GRACE), (Stop.KILL_ALONE, KILL_GRACE)):
            self._stop_by(how, self._alive)
            self._wait_for_ends(grace, self._alive)

    def _stop(self, ranks: Collection[int]) -> None:
        """TERM, then KILL with all that they have started, and wait until they are gone."""
        self._stop_by(Stop.FREEZE, ranks)
        self._stop_by(Stop.TERM, ranks)
        self._wait_for_ends(TERM_GRACE, ranks)
        self._stop_by(Stop.KILL, ranks)
        self._wait_for_ends(KILL_GRACE, ranks)

    def _stop_by(self, how: Stop, ranks: Collection[int]) -> None:
        for node_ranks in self._ranks:
            node_ranks.stop([rank for rank in node_ranks.ranks if rank in ranks and rank in self._alive], how)

    def _wait_for_ends(self, timeout: float, ranks: Collection[int]) -> None:
        """Wait until these ranks are gone, and process other events meanwhile."""
        wanted = set(ranks)
        deadline = clock.monotonic() + timeout
        while wanted & self._alive and (remaining := deadline - clock.monotonic()) > 0:
            self._look(remaining)


def _problem_at_session_end(rank_exit: RankExit, overdue: float | None) -> AgentFailed | None:
    """What went wrong when a rank ended its own pytest session, all of whose tests had passed.

    `overdue` has the seconds in which it did not end by itself; None if it did.
    """
    rank, status = rank_exit.rank, rank_exit.status
    if overdue is not None:
        message = f"Rank {rank} did not end its pytest session within {overdue:g} s."
    elif status is not None and status < 0:
        message = f"Rank {rank} was killed by {linux.signal_name(-status)} when it ended its pytest session."
    elif status:
        message = changed_status(0, status, f" on rank {rank}")
    else:
        return None
    text = shorten(rank_exit.stacks.text or rank_exit.output.stderr)
    return AgentFailed(message=message, text=text, kind=FailureKind.SUITE)


_HELD = 1000.0
"""Seconds between checks while a debugger waits for a command."""


class _Clock:
    """Decides when a step is given up: at its limit, or sooner after a bad outcome or a skip.

    Attributes:
        reason: Why ranks are stopped when the time is up, in words: the limit that applies now.
    """

    def __init__(self, deadlines: Deadlines, peer_grace: TimeLimit) -> None:
        self._deadlines = deadlines
        self._limit = deadlines.limit
        self._peer_grace = peer_grace
        self._is_wrong = False
        self._is_skipped = False
        self._held: set[int] = set()
        self._begin()

    def _begin(self) -> None:
        self._deadline = self._last = clock.monotonic() + self._limit.seconds
        self.reason = f"no end after {self._limit.words(self._deadlines.during)}"

    def hold(self, rank: int, *, is_held: bool) -> None:
        """Stop while a debugger waits for a command; restart when it no longer does, or its rank has ended."""
        if is_held == (rank in self._held):
            return
        self._held ^= {rank}
        self._is_wrong = self._is_skipped = False
        self._begin()

    def restart(self) -> None:
        """Restart, unless a bad outcome or a skip has already shortened the step."""
        if not self._is_wrong and not self._is_skipped:
            self._limit = self._deadlines.anew or self._deadlines.limit
            self._begin()

    def remaining(self, step: Step) -> float:
        """Seconds left, shortened after a bad outcome or a skip in the step."""
        if self._held:
            return _HELD
        now = clock.monotonic()
        if step.has_gone_wrong and not self._is_wrong:
            self._is_wrong = True
            if now + self._peer_grace.seconds < self._deadline:
                self._deadline = now + self._peer_grace.seconds
                self.reason = f"stopped {self._peer_grace.words(f'after {step.first_bad_in_words}')}"
        if step.has_skipped and not self._is_skipped and self._deadlines.skip is not None:
            self._is_skipped = True
            self._deadline = min(self._deadline, now + self._deadlines.skip)
        return self._deadline - now

    @property
    def is_about_a_skip(self) -> bool:
        """Whether only a rank's skip has used up the time."""
        return self._is_skipped and not self._is_wrong and clock.monotonic() < self._last

    def go_on(self) -> None:
        """Extend the time of the peers of a rank that skipped."""
        self._deadline = min(self._last, clock.monotonic() + (self._deadlines.skip or 0.0))

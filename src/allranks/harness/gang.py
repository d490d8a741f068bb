"""A gang: the ranks that run together. Forked together, supervised from outside, and ended together."""

import os
import selectors
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from allranks.harness import kernel
from allranks.harness.channel import End, Report, ReportReader, Run, send_command
from allranks.harness.config import TimeLimits
from allranks.harness.events import EventLog
from allranks.harness.outcome import Outcome
from allranks.harness.signals import let_through
from allranks.harness.stacks import STACKS_SIGNAL, StackFile, innermost, wait_for_stacks
from allranks.testing import skipcodes
from allranks.testing.skipcodes import SkipCode

TERM_GRACE = 1.0
"""Seconds between TERM and KILL: enough for an exit handler, too little to be waited for."""


class HangupError(Exception):
    """The orchestrator is gone or wants the job to end: standard input is at its end, or SIGTERM came."""

    def __init__(self) -> None:
        super().__init__("the job was ended from outside")


@dataclass(kw_only=True, eq=False)
class RankProcess:
    """The agent's side of one rank.

    Attributes:
        pidfd: Readable when the process has ended (pidfd_open(2)).
        exit_status: ``os.waitstatus_to_exitcode`` of its end; None while it lives.
    """

    number: int
    pid: int
    pidfd: int
    commands: int
    reports: ReportReader
    exit_status: int | None = None

    def signal(self, number: int) -> None:
        """Send a signal to the rank alone."""
        if self.exit_status is None:
            signal.pidfd_send_signal(self.pidfd, number)

    def kill_group(self) -> None:
        """KILL the rank with all that it started and that stayed in its process group.

        Only while the rank has not been reaped: until then nobody else can get its process id.
        """
        if self.exit_status is not None:
            return
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            # It has not come as far as making a process group of its own.
            self.signal(signal.SIGKILL)

    def reap(self) -> None:
        """Take the exit status of a rank whose pidfd is readable."""
        _, status = os.waitpid(self.pid, 0)
        self.exit_status = os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        """Close the agent's descriptors of this rank."""
        for descriptor in (self.pidfd, self.commands, self.reports.descriptor):
            os.close(descriptor)


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """The outcome of one step on one rank, as the agent learned it.

    Attributes:
        at: Seconds since the epoch.
        consequence: The outcome came within the grace after another rank's bad one.
        caused_by: For an aborted rank: the rank that went first.
        observed: The agent saw it, because the rank itself could not say it any more.
    """

    rank: int
    outcome: Outcome
    at: float
    message: str = ""
    text: str = ""
    early_skip: bool = False
    has_left_group: bool = False
    consequence: bool = False
    caused_by: int | None = None
    observed: bool = False
    skip_code: SkipCode | None = None


@dataclass(kw_only=True)
class Step:
    """One thing that all ranks of a gang do in lockstep: a start, a test, an end."""

    arrivals: list[Arrival] = field(default_factory=list)

    @property
    def leader(self) -> Arrival | None:
        """The first bad outcome."""
        return next((arrival for arrival in self.arrivals if arrival.outcome.is_bad), None)

    @property
    def is_clean(self) -> bool:
        """Whether the gang may be kept: all ranks are in its group, and all passed, or all skipped before the call."""
        if any(arrival.has_left_group for arrival in self.arrivals):
            return False
        passed = all(arrival.outcome is Outcome.PASSED for arrival in self.arrivals)
        return passed or all(arrival.early_skip for arrival in self.arrivals)


class Gang:
    """Ranks in lockstep.

    Args:
        ranks: The forked ranks, in rank order.
        limits: Time limits.
        results: Where the ranks' stacks are written.
        stdin: Descriptor whose end-of-file means that the job is over.
        known: Children of the agent that are none of this gang's.
    """

    def __init__(
        self, ranks: Sequence[RankProcess], *, limits: TimeLimits, results: Path, stdin: int, known: frozenset[int]
    ) -> None:
        self._ranks = ranks
        self._limits = limits
        self._stacks = {rank.number: StackFile(results / f"rank-{rank.number}.stacks.txt") for rank in ranks}
        self._known = known
        self._stdin = stdin
        self._step = Step()
        self._pending: list[RankProcess] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(stdin, selectors.EVENT_READ, None)
        for rank in ranks:
            self._selector.register(rank.reports.descriptor, selectors.EVENT_READ, rank)
            self._selector.register(rank.pidfd, selectors.EVENT_READ, rank)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self._ranks)

    def start(self) -> Step:
        """Wait until every rank has joined the process group."""
        return self._supervise(
            self._limits.process_group + self._limits.peer_grace, "while it joined the process group"
        )

    def run(self, command: Run) -> Step:
        """Release one test and wait for the last rank of it."""
        self._send(command)
        return self._supervise(self._limits.test, "in this test")

    def end(self) -> Step:
        """Let the ranks tear down and leave; whoever does not in time is stopped."""
        self._send(End())
        step = self._supervise(self._limits.process_group, "while fixtures and process group were torn down")
        self._wait_for_exits(TERM_GRACE, self._ranks)
        self._stop(self._alive())
        return step

    def condemn(self) -> None:
        """End a gang after something went wrong: fixtures get the grace to tear down, then everything stops."""
        self._send(End())
        self._wait_for_exits(self._limits.peer_grace, self._ranks)
        self._stop(self._alive())

    def abort(self, outcome: Outcome, reason: str) -> Step:
        """Stop every rank at once, for a reason outside of the gang.

        Args:
            outcome: What this comes to for the ranks that have not ended their step.
            reason: Why, in words.

        Returns:
            The step that was broken off.
        """
        self._stop(self._alive())
        for rank in self._pending:
            stopped = Arrival(rank=rank.number, outcome=outcome, at=time.time(), message=reason, observed=True)
            # A report that was under way still counts.
            reports = rank.reports.read()
            self._step.arrivals.append(_reported(rank, reports[-1], self._step.leader) if reports else stopped)
        return self._step

    def close(self) -> None:
        """Stop what still lives, descendants that outlived their rank included, and close all descriptors."""
        self._stop(self._alive())
        _kill_orphans(self._known)
        self._selector.close()
        for rank in self._ranks:
            rank.close()

    def _send(self, command: Run | End) -> None:
        for rank in self._ranks:
            send_command(rank.commands, command)

    def _alive(self) -> list[RankProcess]:
        return [rank for rank in self._ranks if rank.exit_status is None]

    def _supervise(self, limit: float, where: str) -> Step:
        """Wait for one report of each rank, whatever the ranks do instead."""
        step = self._step = Step()
        pending = self._pending = self._alive()
        for rank in self._ranks:
            if rank.exit_status is not None:
                step.arrivals.append(self._ended(rank, rank.exit_status, step.leader))
        deadline = time.monotonic() + limit
        grace: float | None = None
        while pending and (remaining := (grace or deadline) - time.monotonic()) > 0:
            for rank, has_died in self._ready(remaining):
                arrival = self._arrival(rank, has_died, step.leader)
                if rank in pending and arrival is not None:
                    pending.remove(rank)
                    step.arrivals.append(arrival)
            if step.leader is not None and grace is None:
                grace = min(time.monotonic() + self._limits.peer_grace, deadline)
        step.arrivals += self._give_up(pending, step.leader, limit, where)
        return step

    def _ready(self, timeout: float) -> list[tuple[RankProcess, bool]]:
        """The ranks that have something to say, each once with whether it has died, in the order the kernel tells."""
        with let_through():
            keys = [key for key, _ in self._selector.select(timeout)]
        if any(key.fd == self._stdin for key in keys) and _at_end(self._stdin):
            raise HangupError
        dead = {key.data.number for key in keys if key.data is not None and key.fd == key.data.pidfd}
        ranks = dict.fromkeys(key.data for key in keys if key.data is not None)
        return [(rank, rank.number in dead) for rank in ranks]

    def _arrival(self, rank: RankProcess, has_died: bool, leader: Arrival | None) -> Arrival | None:
        """What a ready rank has to say; a report that it sent before it died counts."""
        reports = rank.reports.read()
        if has_died or rank.reports.at_end:
            self._note_end(rank)
        if reports:
            return _reported(rank, reports[-1], leader)
        if rank.exit_status is not None:
            return self._ended(rank, rank.exit_status, leader)
        return None

    def _ended(self, rank: RankProcess, status: int, leader: Arrival | None) -> Arrival:
        return _ended(rank, status, leader, self._stacks[rank.number].added())

    def _note_end(self, rank: RankProcess) -> None:
        """A rank that closed its pipe is either dead or will never report again: in both cases this is its end."""
        if not _is_readable(rank.pidfd, TERM_GRACE):
            rank.kill_group()
        self._take_exit(rank)

    def _take_exit(self, rank: RankProcess) -> None:
        for descriptor in (rank.pidfd, rank.reports.descriptor):
            self._selector.unregister(descriptor)
        rank.reap()

    def _give_up(
        self, pending: Sequence[RankProcess], leader: Arrival | None, limit: float, where: str
    ) -> list[Arrival]:
        if not pending:
            return []
        stacks = self._dump_stacks(pending)
        self._stop(pending)
        return [_stopped(rank, leader, stacks[rank.number], f"no end after {limit:g} s {where}") for rank in pending]

    def _dump_stacks(self, ranks: Iterable[RankProcess]) -> dict[int, str]:
        for rank in ranks:
            rank.signal(STACKS_SIGNAL)
        return wait_for_stacks({rank.number: self._stacks[rank.number] for rank in ranks})

    def _stop(self, ranks: Sequence[RankProcess]) -> None:
        """TERM, then KILL, and wait until they are gone."""
        for rank in ranks:
            rank.signal(signal.SIGTERM)
        self._wait_for_exits(TERM_GRACE, ranks)
        for rank in ranks:
            rank.kill_group()
        self._wait_for_exits(None, ranks)

    def _wait_for_exits(self, timeout: float | None, ranks: Sequence[RankProcess]) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        for rank in ranks:
            remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
            if rank.exit_status is None and _is_readable(rank.pidfd, remaining):
                self._take_exit(rank)


def fork_ranks(count: int, be_rank: Callable[[int, int, int], NoReturn]) -> list[RankProcess]:
    """Fork `count` ranks.

    Args:
        count: How many.
        be_rank: Called in each fork with its rank, the descriptor of its commands and that of its reports.

    Returns:
        The agent's side of each rank, in rank order.
    """
    ranks: list[RankProcess] = []
    for number in range(count):
        ranks.append(_fork_rank(number, be_rank, _descriptors(ranks)))
    return ranks


def _fork_rank(number: int, be_rank: Callable[[int, int, int], NoReturn], inherited: Iterable[int]) -> RankProcess:
    commands_in, commands_out = os.pipe()
    reports_in, reports_out = os.pipe()
    pid = os.fork()
    if pid == 0:
        for descriptor in (commands_out, reports_in, *inherited):
            os.close(descriptor)
        be_rank(number, commands_in, reports_out)
    os.close(commands_in)
    os.close(reports_out)
    return RankProcess(
        number=number, pid=pid, pidfd=os.pidfd_open(pid), commands=commands_out, reports=ReportReader(reports_in)
    )


def _descriptors(ranks: Iterable[RankProcess]) -> list[int]:
    return [fd for rank in ranks for fd in (rank.pidfd, rank.commands, rank.reports.descriptor)]


def _reported(rank: RankProcess, report: Report, leader: Arrival | None) -> Arrival:
    return Arrival(
        rank=rank.number,
        outcome=report.outcome,
        at=time.time(),
        message=report.message,
        early_skip=report.early_skip,
        has_left_group=report.has_left_group,
        consequence=leader is not None and report.outcome.is_bad,
    )


def _ended(rank: RankProcess, status: int, leader: Arrival | None, stacks: str) -> Arrival:
    """The outcome of a rank whose process ended instead of reporting; a fatal signal leaves its stacks."""
    if status in set(SkipCode):
        return Arrival(
            rank=rank.number,
            outcome=Outcome.SKIPPED,
            at=time.time(),
            message=skipcodes.reason(SkipCode(status)),
            observed=True,
            skip_code=SkipCode(status),
        )
    return Arrival(
        rank=rank.number,
        outcome=Outcome.CRASHED,
        at=time.time(),
        message=f"rank {rank.number} {describe_exit(status)}{_was_in(stacks)}",
        text=stacks,
        consequence=leader is not None,
        observed=True,
    )


def _stopped(rank: RankProcess, leader: Arrival | None, stacks: str, late: str) -> Arrival:
    """The outcome of a rank that had to be stopped: over time by itself, or aborted after a peer's bad outcome."""
    message = f"aborted by rank {leader.rank}" if leader else f"rank {rank.number} timed out: {late}"
    return Arrival(
        rank=rank.number,
        outcome=Outcome.ABORTED if leader else Outcome.TIMED_OUT,
        at=time.time(),
        message=message + _was_in(stacks),
        text=stacks,
        consequence=leader is not None,
        caused_by=leader.rank if leader else None,
        observed=True,
    )


def _was_in(stacks: str) -> str:
    where = innermost(stacks)
    return f"; it was in {where}" if where else ""


def describe_exit(status: int) -> str:
    """In words, what an exit status (negative: a signal) says."""
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"left with exit code {status} in mid-test"


def record_observed(results: Path, nodeid: str, arrival: Arrival) -> None:
    """Write down, in the rank's own file, an end that the rank could not write itself."""
    log = EventLog(results / f"events-{arrival.rank}.jsonl")
    log.write(
        "rank_ended",
        nodeid=nodeid,
        rank=arrival.rank,
        outcome=arrival.outcome,
        message=arrival.message,
        text=arrival.text,
        caused_by=arrival.caused_by,
        skip_code=arrival.skip_code,
        skip_kind=None if arrival.skip_code is None else skipcodes.kind(arrival.skip_code),
    )
    log.close()


def _at_end(descriptor: int) -> bool:
    """Whether a readable standard input is at its end; what else stands there is of no meaning."""
    return os.read(descriptor, 4096) == b""


def _is_readable(descriptor: int, timeout: float | None) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(timeout))


def _kill_orphans(known: frozenset[int]) -> None:
    """Kill and reap what ranks left behind: as subreaper, the agent is the parent of it now."""
    while orphans := kernel.children() - known:
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

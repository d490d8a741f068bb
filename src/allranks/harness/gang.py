"""A gang: the ranks that run together. Forked together, supervised from outside, and ended together."""

import os
import selectors
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from allranks.harness import kernel
from allranks.harness.arrival import Arrival, Step, ended, reported, stopped
from allranks.harness.channel import End, Run, send_command
from allranks.harness.config import TimeLimits
from allranks.harness.outcome import Outcome
from allranks.harness.rank_process import RankProcess
from allranks.harness.signals import let_through
from allranks.harness.stacks import STACKS_SIGNAL, StackFile, wait_for_stacks

TERM_GRACE = 1.0
"""Seconds between TERM and KILL: enough for an exit handler, too little to be waited for."""


class HangupError(Exception):
    """The orchestrator is gone or wants the job to end: standard input is at its end, or SIGTERM came."""

    def __init__(self) -> None:
        super().__init__("the job was ended from outside")


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
        self._send(End(is_condemned=False))
        step = self._supervise(self._limits.process_group, "while fixtures and process group were torn down")
        self._wait_for_exits(TERM_GRACE, self._ranks)
        self._stop(self._alive())
        return step

    def condemn(self) -> None:
        """End a gang after something went wrong: fixtures get the grace to tear down, then everything stops."""
        self._send(End(is_condemned=True))
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
            # A report that was under way still counts.
            for report in rank.reports.read():
                self._step.note(reported(rank.number, report, self._step.leader))
            if not self._step.has_ended_on(rank.number):
                stopped = Arrival(rank=rank.number, outcome=outcome, at=time.time(), message=reason, observed=True)
                self._step.note(stopped)
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
                for arrival in self._arrivals(rank, has_died, step):
                    step.note(arrival)
                    if arrival.is_final and rank in pending:
                        pending.remove(rank)
            if step.leader is not None and grace is None:
                grace = min(time.monotonic() + self._limits.peer_grace, deadline)
        for arrival in self._give_up(pending, step.leader, limit, where):
            step.note(arrival)
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

    def _arrivals(self, rank: RankProcess, has_died: bool, step: Step) -> list[Arrival]:
        """What a ready rank has to say; a report that it sent before it died counts."""
        is_pending = rank in self._pending
        reports = rank.reports.read()
        if has_died or rank.reports.at_end:
            self._note_end(rank)
        said = [reported(rank.number, report, step.leader) for report in reports]
        if rank.exit_status is not None and not (said and said[-1].is_final):
            said.append(self._ended(rank, rank.exit_status, step.leader))
        return said if is_pending else []

    def _ended(self, rank: RankProcess, status: int, leader: Arrival | None) -> Arrival:
        return ended(rank.number, status, leader, self._stacks[rank.number].added())

    def _note_end(self, rank: RankProcess) -> None:
        """A rank that closed its pipe is either dead or will never report again: in both cases this is its end."""
        if not kernel.is_readable(rank.pidfd, TERM_GRACE):
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
        return [
            stopped(rank.number, leader, stacks[rank.number], f"no end after {limit:g} s {where}") for rank in pending
        ]

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
            if rank.exit_status is None and kernel.is_readable(rank.pidfd, remaining):
                self._take_exit(rank)


def _at_end(descriptor: int) -> bool:
    """Whether a readable standard input is at its end; what else stands there is of no meaning."""
    return os.read(descriptor, 4096) == b""


def _kill_orphans(known: frozenset[int]) -> None:
    """Kill and reap what ranks left behind: as subreaper, the agent is the parent of it now."""
    while orphans := kernel.children() - known:
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

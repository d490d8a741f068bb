"""What the agent learns of a step on one rank: from the rank itself, or by seeing its process end."""

import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from allranks.harness.channel import Report
from allranks.harness.events import EventLog
from allranks.harness.outcome import Outcome
from allranks.harness.stacks import innermost
from allranks.testing import skipcodes
from allranks.testing.skipcodes import SkipCode


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """The outcome of one step on one rank, as the agent learned it.

    Attributes:
        at: Seconds since the epoch.
        consequence: The outcome came within the grace after another rank's bad one.
        caused_by: For an aborted rank: the rank that went first.
        is_final: The rank's step is over.
        observed: The agent saw it, because the rank itself could not say it any more.
    """

    rank: int
    outcome: Outcome
    at: float
    message: str = ""
    text: str = ""
    early_skip: bool = False
    has_left_group: bool = False
    is_final: bool = True
    consequence: bool = False
    caused_by: int | None = None
    observed: bool = False
    skip_code: SkipCode | None = None


@dataclass(kw_only=True)
class Step:
    """One thing that all ranks of a gang do in lockstep: a start, a test, an end."""

    arrivals: list[Arrival] = field(default_factory=list)

    def note(self, arrival: Arrival) -> None:
        """Add what arrived; the first bad outcome of a rank stands, whatever the rank comes to after it."""
        if not self.has_gone_wrong_on(arrival.rank):
            self.arrivals.append(arrival)

    def has_ended_on(self, rank: int) -> bool:
        """Whether this rank has said all that it had to say."""
        return any(arrival.rank == rank and arrival.is_final for arrival in self.arrivals)

    def has_gone_wrong_on(self, rank: int) -> bool:
        """Whether a bad outcome of this rank has arrived."""
        return any(arrival.rank == rank and arrival.outcome.is_bad for arrival in self.arrivals)

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


def reported(rank: int, report: Report, leader: Arrival | None) -> Arrival:
    """What a rank said itself."""
    return Arrival(
        rank=rank,
        outcome=report.outcome,
        at=time.time(),
        message=report.message,
        early_skip=report.early_skip,
        has_left_group=report.has_left_group,
        is_final=report.is_final,
        consequence=leader is not None and report.outcome.is_bad,
    )


def ended(rank: int, status: int, leader: Arrival | None, stacks: str) -> Arrival:
    """The outcome of a rank whose process ended instead of reporting; a fatal signal leaves its stacks."""
    if status in set(SkipCode):
        return Arrival(
            rank=rank,
            outcome=Outcome.SKIPPED,
            at=time.time(),
            message=skipcodes.reason(SkipCode(status)),
            observed=True,
            skip_code=SkipCode(status),
        )
    return Arrival(
        rank=rank,
        outcome=Outcome.CRASHED,
        at=time.time(),
        message=f"rank {rank} {describe_exit(status)}{_was_in(stacks)}",
        text=stacks,
        consequence=leader is not None,
        observed=True,
    )


def stopped(rank: int, leader: Arrival | None, stacks: str, late: str) -> Arrival:
    """The outcome of a rank that had to be stopped: over time by itself, or aborted after a peer's bad outcome."""
    message = f"aborted by rank {leader.rank}" if leader else f"rank {rank} timed out: {late}"
    return Arrival(
        rank=rank,
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

"""What a supervisor learns of its ranks: what they report, how they end, and where they hang."""

from dataclasses import dataclass, field

from allranks.agent.call_log import Calls, Wait
from allranks.agent.channel import Debugging, Progress
from allranks.agent.output import Output
from allranks.agent.stacks import Stacks


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """A rank has sent a message.

    Attributes:
        at: Seconds since the epoch, on the clock of the leading agent.
        has_strangers: Other processes have sent data in the rank's place, which was discarded.
        calls: What it has called in the running test, if its step is over.
    """

    rank: int
    message: Progress | Debugging
    at: float
    has_strangers: bool = False
    calls: Calls | None = None


@dataclass(frozen=True, kw_only=True)
class RankExit:
    """A rank's process has ended.

    Attributes:
        status: Exit code, negative for a signal; None if unknown.
        at: Seconds since the epoch, on the clock of the leading agent.
        cut_off: Why the supervisor killed it, in words: what it had done to its connection; empty if it did not.
        for_want_of_memory: The kernel killed it when memory ran out.
        stacks: Stacks that a fatal signal left in its stack file.
        output: Its last output.
        lost: Why its status is unknown; empty if it is known.
        waits_for: What it waited for, or had last waited for without success.
        calls: What it had called in the running test.
        was_told_to_stop: It is lost with its node, whose agent was told to stop.
    """

    rank: int
    status: int | None
    at: float
    cut_off: str = ""
    for_want_of_memory: bool = False
    stacks: Stacks = field(default_factory=Stacks)
    output: Output = field(default_factory=Output)
    lost: str = ""
    waits_for: Wait | None = None
    calls: Calls | None = None
    was_told_to_stop: bool = False


RankEvent = RankReport | RankExit


@dataclass(frozen=True, kw_only=True)
class RankHang:
    """Where a rank hangs that has not ended its step.

    Attributes:
        stacks: Its stacks.
        held: What keeps it from running, in words; empty for nothing.
        phase: Of its test, in words; empty if unknown.
        waits_for: As of :class:`RankExit`.
        children: Where the processes are that it has started, in words; empty if unknown.
        child_stacks: Their stacks.
    """

    stacks: Stacks = field(default_factory=Stacks)
    held: str = ""
    phase: str = ""
    waits_for: Wait | None = None
    children: str = ""
    child_stacks: str = ""

"""The messages between the agents of a job's nodes.

The leader orders; a follower answers those orders that ask for something, one after the other, and reports its ranks'
events as they happen.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, get_args

from allranks.agent.channel import RankExit, RankReport
from allranks.agent.gangs.local_ranks import Examination, Order, Stop
from allranks.agent.nodes.node import CollectionDigest
from allranks.agent.orphans import KilledOrphan
from allranks.agent.output import Output
from allranks.agent.program import StartRanks
from allranks.protocol.typed_json import by_name


@dataclass(frozen=True, kw_only=True)
class Greeting:
    """The leader's first message to whoever connects."""

    nonce: str  # a fresh random number


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A follower's answer: which node it is of, and its proof that it has the job's token."""

    node: int
    nonce: str
    proof: str


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The leader's proof, after which all other messages may come."""

    proof: str


@dataclass(frozen=True, kw_only=True)
class Ping:
    """The leader wants to know whether the follower lives."""


@dataclass(frozen=True, kw_only=True)
class Alive:
    """It does."""


@dataclass(frozen=True, kw_only=True)
class TellTime:
    """Answer with the :class:`Time`."""


@dataclass(frozen=True, kw_only=True)
class Time:
    """What the monotonic clock of the follower's host shows."""

    now: float


@dataclass(frozen=True, kw_only=True)
class Started:
    """The answer to :class:`~allranks.agent.program.StartRanks`."""

    pids: tuple[int, ...] = ()
    error: str = ""  # why none was started; empty if they were


@dataclass(frozen=True, kw_only=True)
class SendRanks:
    """Send an order to each rank."""

    order: Order


@dataclass(frozen=True, kw_only=True)
class StopRanks:
    """Stop these ranks."""

    ranks: tuple[int, ...]
    how: Stop


@dataclass(frozen=True, kw_only=True)
class ExamineRanks:
    """Answer with the :class:`Examined` ranks, and of these ranks with where they are."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Examined:
    """What ranks are doing, with times of the follower's host, and with the middle of long texts cut out."""

    ranks: Examination


@dataclass(frozen=True, kw_only=True)
class TakeOutput:
    """Log what each rank has printed, under this title, and answer with the :class:`Outputs`."""

    title: str


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What each rank has printed, with the middle of long texts cut out."""

    ranks: Mapping[int, Output]


@dataclass(frozen=True, kw_only=True)
class CloseRanks:
    """End what outlived the ranks, and answer with :class:`Left`."""


@dataclass(frozen=True, kw_only=True)
class Left:
    """Processes that outlived the ranks that had started them."""

    processes: tuple[KilledOrphan, ...]


@dataclass(frozen=True, kw_only=True)
class Dismiss:
    """The job is done; answer with :class:`Dismissed`, and end."""


@dataclass(frozen=True, kw_only=True)
class Dismissed:
    """The follower ends, and its records are complete."""


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The follower ends before it was dismissed."""

    why: str  # as in "was told to stop"
    was_told_to_stop: bool = False


OfRanks = SendRanks | StopRanks | ExamineRanks | TakeOutput | CloseRanks
"""Orders about ranks that have been started."""

Message = (
    OfRanks
    | Greeting
    | Claim
    | Proof
    | Ping
    | Alive
    | TellTime
    | Time
    | StartRanks
    | Started
    | Examined
    | Outputs
    | Left
    | Dismiss
    | Dismissed
    | Failed
    | CollectionDigest
    | RankReport
    | RankExit
)
"""Any message between two agents."""

MESSAGES: Final[Mapping[str, type[Message]]] = by_name(get_args(Message))
"""The same by the names that messages begin with."""

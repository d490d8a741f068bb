"""The messages between the agents of a job's nodes.

The leader sends requests. A follower answers them in order, and reports its ranks' events as they happen.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, get_args

from allranks.agent.channel import RankExit, RankReport
from allranks.agent.gangs.local_ranks import GangCommand, Inspection, Stop
from allranks.agent.nodes.node import CollectionDigest
from allranks.agent.orphans import KilledOrphan
from allranks.agent.output import Output
from allranks.agent.program import StartRanks
from allranks.protocol.typed_json import by_name


@dataclass(frozen=True, kw_only=True)
class Challenge:
    """The leader's first message to a client."""

    nonce: str  # a fresh random number


@dataclass(frozen=True, kw_only=True)
class FollowerProof:
    """The follower's node, and its proof that it has the job's token."""

    node: int
    nonce: str
    proof: str


@dataclass(frozen=True, kw_only=True)
class LeaderProof:
    """The leader's proof, which completes the handshake."""

    proof: str


@dataclass(frozen=True, kw_only=True)
class Ping:
    """A liveness check; the answer is :class:`Pong`."""


@dataclass(frozen=True, kw_only=True)
class Pong:
    """The answer to :class:`Ping`."""


@dataclass(frozen=True, kw_only=True)
class GetTime:
    """Answer with the :class:`Time`."""


@dataclass(frozen=True, kw_only=True)
class Time:
    """The monotonic clock of the follower's host."""

    now: float


@dataclass(frozen=True, kw_only=True)
class Started:
    """The answer to :class:`~allranks.agent.program.StartRanks`."""

    pids: tuple[int, ...] = ()
    error: str = ""  # why no rank was started


@dataclass(frozen=True, kw_only=True)
class StopRanks:
    """Stop these ranks."""

    ranks: tuple[int, ...]
    how: Stop


@dataclass(frozen=True, kw_only=True)
class InspectRanks:
    """Answer with the :class:`~allranks.agent.gangs.local_ranks.Inspection`.

    Its times are by the follower's clock, and its long texts are shortened.
    """

    ranks: tuple[int, ...]  # those whose positions are requested; the calls are those of all ranks
    briefly: bool = False


@dataclass(frozen=True, kw_only=True)
class TakeOutput:
    """Log the output of all ranks under a title, and answer with :class:`Outputs`."""

    title: str


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """The output of each rank, with long texts shortened."""

    ranks: Mapping[int, Output]


@dataclass(frozen=True, kw_only=True)
class CloseRanks:
    """Kill processes that outlived the ranks, and answer with :class:`RanksClosed`."""


@dataclass(frozen=True, kw_only=True)
class RanksClosed:
    """The answer to :class:`CloseRanks`."""

    orphans: tuple[KilledOrphan, ...]


@dataclass(frozen=True, kw_only=True)
class Dismiss:
    """The job is done: answer with :class:`Dismissed`, and exit."""


@dataclass(frozen=True, kw_only=True)
class Dismissed:
    """The follower has written all of its records, and exits."""


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The follower exits before it was dismissed."""

    why: str  # a predicate, as in "received a request to stop"
    was_told_to_stop: bool = False


RankRequest = GangCommand | StopRanks | InspectRanks | TakeOutput | CloseRanks
"""A command to all ranks that have been started, or a request about them."""

Message = (
    RankRequest
    | Challenge
    | FollowerProof
    | LeaderProof
    | Ping
    | Pong
    | GetTime
    | Time
    | StartRanks
    | Started
    | Inspection
    | Outputs
    | RanksClosed
    | Dismiss
    | Dismissed
    | Failed
    | CollectionDigest
    | RankReport
    | RankExit
)

MESSAGES: Final[Mapping[str, type[Message]]] = by_name(get_args(Message))
"""Each kind of message, by the name that starts its JSON."""

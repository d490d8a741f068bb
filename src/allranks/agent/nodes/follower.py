"""A following agent: it starts and ends its own ranks by order of the leading agent.

It waits for its leader, for its ranks and for the end of the job at the same time. If the leader is gone, or the job is
over, it ends its ranks and itself.
"""

import selectors
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from allranks.agent import clock
from allranks.agent.channel import RankEvent, RankExit, RankHang
from allranks.agent.gangs.forks import ForkServerError
from allranks.agent.gangs.local_ranks import Look, Ranks, Stop
from allranks.agent.job_end import JobEnd, StopRequestedError
from allranks.agent.nodes import messages
from allranks.agent.nodes.connection import ConnectionLostError, NodeConnection
from allranks.agent.nodes.messages import Message
from allranks.agent.nodes.node import CollectionDigest, Node
from allranks.agent.orphans import KilledOrphan
from allranks.agent.output import Output
from allranks.agent.program import StartRanks
from allranks.agent.stacks import Stacks
from allranks.protocol.outcomes import shorten

_Texts = TypeVar("_Texts", RankExit, RankHang, Output)

_SENT = 16_000
"""Maximum characters of a text sent to the leader: files of this node have all of it."""


class Follower:
    """This agent in its relation to the leader. The leader may take `silence` seconds to read a message."""

    def __init__(self, connection: NodeConnection, silence: float) -> None:
        self._connection = connection
        self._silence = silence

    def report(self, digest: CollectionDigest) -> None:
        """Report the collected tests to the leader."""
        with suppress(ConnectionLostError):  # the end of the connection tells the leader the same
            self._send(digest.shortened)

    def serve(self, node: Node, end: JobEnd) -> None:
        """Carry out the leader's commands until it dismisses this agent."""
        service = _Service(self._connection, node, self._silence, end)
        try:
            service.run()
        except ConnectionLostError as error:
            # The leader's own journal has more details than this one could.
            raise StopRequestedError from error
        except StopRequestedError:
            self._report_failure("was told to stop", was_told_to_stop=True)
            raise
        except ForkServerError as error:
            self._report_failure(f"could not go on: the process that has imported the suite {error}")
            raise
        except Exception as error:
            self._report_failure(f"could not go on: {type(error).__name__}: {error}")
            raise

    def _report_failure(self, why: str, *, was_told_to_stop: bool = False) -> None:
        with suppress(ConnectionLostError):
            self._send(messages.Failed(why=why, was_told_to_stop=was_told_to_stop))

    def _send(self, message: Message) -> None:
        self._connection.send(message, self._silence)


class _Service:
    """Serves the leader from the collection to the end of the job."""

    def __init__(self, connection: NodeConnection, node: Node, silence: float, end: JobEnd) -> None:
        self._connection = connection
        self._node = node
        self._silence = silence
        self._ranks: Ranks | None = None
        self._end = end
        self._is_over = False
        self._selector = self._fresh_selector()

    def run(self) -> None:
        """Carry out commands until the leader dismisses this agent."""
        try:
            while not self._is_over:
                self._turn()
        finally:
            if self._ranks is not None:
                self._ranks.stop(self._ranks.ranks, Stop.KILL)
                self._disband(self._ranks)

    def _fresh_selector(self) -> selectors.BaseSelector:
        """A new selector for each gang, whose ranks close their descriptors without unregistering them."""
        selector = selectors.DefaultSelector()
        looks: dict[int, Look] = {
            self._connection.fileno(): self._look_at_leader,
            self._end.fileno(): self._look_at_end,
        }
        for descriptor, look in looks.items():
            selector.register(descriptor, selectors.EVENT_READ, look)
        return selector

    def _look_at_end(self) -> Sequence[RankEvent]:
        raise StopRequestedError

    def _turn(self) -> None:
        """Wait, and forward events; read the leader's messages last, because they may close the ranks."""
        ready = self._selector.select()
        looks: list[Look] = [
            key.data for key, _ in sorted(ready, key=lambda each: each[0].fd == self._connection.fileno())
        ]
        for look in looks:
            for event in look():
                self._send(_to_send(event))
        while self._connection.has_message:
            # It arrived during a send.
            self._look_at_leader()

    def _look_at_leader(self) -> Sequence[RankEvent]:
        for message in self._connection.receive():
            self._obey(message)
        if self._connection.ended and not self._is_over:
            raise ConnectionLostError(self._connection.ended)
        return ()

    def _obey(self, message: Message) -> None:
        match message:
            case messages.Ping():
                self._send(messages.Alive())
            case messages.TellTime():
                self._send(messages.Time(now=clock.monotonic()))
            case StartRanks():
                self._send(self._start_ranks(message))
            case messages.Dismiss():
                self._is_over = True
                self._send(messages.Dismissed())
            case _ if isinstance(message, messages.OfRanks):
                self._lead(self._started_ranks, message)
            case _:
                msg = f"sent an order that is none: {type(message).__name__}"
                raise ConnectionLostError(msg)

    @property
    def _started_ranks(self) -> Ranks:
        if self._ranks is None:
            msg = "sent a command for ranks before it started any"
            raise ConnectionLostError(msg)
        return self._ranks

    def _lead(self, ranks: Ranks, order: messages.OfRanks) -> None:
        match order:
            case messages.SendRanks():
                ranks.send(order.order)
            case messages.StopRanks():
                ranks.stop(order.ranks, order.how)
            case messages.ExamineRanks():
                found = ranks.examine(order.ranks)()
                hangs = {rank: _short(hang) for rank, hang in found.hangs.items()}
                self._send(messages.Examined(ranks=replace(found, hangs=hangs)))
            case messages.TakeOutput():
                outputs = ranks.take_output(order.title)()
                self._send(messages.Outputs(ranks={rank: _short(output) for rank, output in outputs.items()}))
            case messages.CloseRanks():
                self._send(messages.Left(processes=tuple(self._disband(ranks))))

    def _start_ranks(self, request: StartRanks) -> messages.Started:
        try:
            self._ranks = self._node.start_ranks(request)()
        except OSError as error:
            return messages.Started(error=str(error) or type(error).__name__)
        self._ranks.watch(self._selector)
        return messages.Started(pids=tuple(self._ranks.pids))

    def _send(self, message: Message) -> None:
        self._connection.send(message, self._silence)

    def _disband(self, ranks: Ranks) -> Sequence[KilledOrphan]:
        self._ranks = None
        self._selector.close()
        self._selector = self._fresh_selector()
        return ranks.close()()


def _to_send(event: RankEvent) -> RankEvent:
    """An event with its time on the monotonic clock of this host, and with the middle of long texts cut out."""
    event = replace(event, at=event.at - clock.ORIGIN)
    if isinstance(event, RankExit):
        return replace(_short(event), output=_short(event.output))
    return event


def _short(value: _Texts) -> _Texts:
    """A dataclass with the middle of its long texts cut out."""
    cut: dict[str, Any] = {name: _cut(part) for name, part in vars(value).items() if isinstance(part, str | Stacks)}
    return replace(value, **cut)


def _cut(part: str | Stacks) -> str | Stacks:
    return shorten(part, _SENT) if isinstance(part, str) else replace(part, text=shorten(part.text, _SENT))

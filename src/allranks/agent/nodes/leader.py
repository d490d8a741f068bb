"""The leading agent and its view of the other nodes, whose agents fork ranks for it.

The other agent does for its ranks what :class:`~allranks.agent.gangs.local_ranks.LocalRanks` does, and reports their
events. The leader pings it periodically (a kernel timer wakes the leader up), because a stopped process keeps its
connection. An agent that is gone or silent is lost for good, with all its ranks.
"""

import math
import os
import selectors
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from allranks.agent import clock
from allranks.agent.channel import RankEvent, RankExit, RankHang
from allranks.agent.gangs.local_ranks import Answer, Examination, Look, Order, Stop
from allranks.agent.linux import Timer
from allranks.agent.nodes import messages
from allranks.agent.nodes.connection import ConnectionLostError, NodeConnection, NodesError
from allranks.agent.nodes.messages import Message
from allranks.agent.nodes.node import CollectionDigest, CollectionFailure, NodeLostError, difference, notice
from allranks.agent.orphans import KilledOrphan
from allranks.agent.output import Output
from allranks.agent.program import StartRanks
from allranks.protocol.config import AgentConfig, TimeLimit, TimeLimits, share_of

_Kind = TypeVar("_Kind", bound=Message)

_BEATS = 4
"""Pings in the time that one answer may take."""

_SAMPLES = 5
_COMPARED_FOR = 60.0
"""Seconds for which the comparison of two hosts' clocks holds."""


class FollowerLink:
    """The leader's connection to the agent of one other node."""

    def __init__(self, node: int, connection: NodeConnection, silence: TimeLimit) -> None:
        self.node = node
        self.lost = ""  # why the agent is lost, as in "is gone"; empty as long as it answers
        self.was_told_to_stop = False
        self.ahead = 0.0  # seconds by which the monotonic clock of its host is ahead of this host's
        self._compared = -math.inf
        self._connection = connection
        self._silence = silence
        self._timer = Timer(silence.seconds / _BEATS)
        # Signals messages that arrived during a send or a wait: no selector reports those again.
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._unread: list[RankEvent] = []
        self._asked: float | None = None

    @property
    def descriptors(self) -> tuple[int, ...]:
        """At least one of these is readable when :meth:`take` has something to do."""
        return self._connection.fileno(), self._timer.fileno(), self._bell

    def fileno(self) -> int:
        """Readable when :meth:`receive` has something to do."""
        return self._connection.fileno()

    def send(self, message: Message) -> None:
        """Send a message; does nothing if the agent is lost."""
        if self.lost:
            return
        try:
            self._connection.send(message, self._silence.seconds)
        except ConnectionLostError as error:
            self._lose(str(error))
        self._ring()

    def ask(self, message: Message, kind: type[_Kind]) -> Answer[_Kind | None]:
        """Send a message; returns what waits for its answer, of this class: None if the agent is lost."""
        deadline = time.monotonic() + self._silence.seconds
        self.send(message)

        def wait() -> _Kind | None:
            while not self.lost:
                answer = next((message for message in self.receive() if isinstance(message, kind)), None)
                if answer is not None:
                    self._ring()
                    return answer
                if not self.lost and not self._connection.wait(deadline):
                    self._lose(f"does not answer within {self._silence.words()}")
            return None

        return wait

    def compare_clocks(self) -> None:
        """Measure :attr:`ahead` unless that was done lately: two hosts' clocks drift apart by some ms in a minute."""
        if clock.monotonic() - self._compared < _COMPARED_FOR:
            return
        quickest = math.inf
        for _ in range(_SAMPLES):
            asked = clock.monotonic()
            answer = self.ask(messages.TellTime(), messages.Time)()
            answered = clock.monotonic()
            if answer is None:
                return
            if answered - asked < quickest:
                quickest = answered - asked
                # The answer was given at some moment in between: of the quickest one, this is known best.
                self.ahead = answer.now - (asked + answered) / 2
        self._compared = clock.monotonic()

    def receive(self) -> list[Message]:
        """The messages that have arrived; rank events are also kept for :meth:`take`."""
        if self.lost:
            return []
        received = self._connection.receive()
        if received:
            self._asked = None
        self._unread += [message for message in received if isinstance(message, RankEvent)]
        failure = next((message for message in received if isinstance(message, messages.Failed)), None)
        if failure is not None:
            self.was_told_to_stop = self.was_told_to_stop or failure.was_told_to_stop
            self._lose(failure.why)
        elif self._connection.ended:
            self._lose(self._connection.ended)
        return received

    def take(self) -> list[RankEvent]:
        """The rank events since the last call; pings the agent when the timer has expired."""
        has_expired = self._timer.has_expired()
        with suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        self.receive()
        if has_expired:
            self._beat()
        events, self._unread = self._unread, []
        return events

    def _beat(self) -> None:
        now = time.monotonic()
        if self._asked is None:
            self._asked = now
            self.send(messages.Ping())
        elif now - self._asked > self._silence.seconds:
            self._lose(f"does not answer within {self._silence.words()}")

    def _lose(self, why: str) -> None:
        if not self.lost:
            self.lost = why
            # An agent that was only slow must not continue alone.
            self._connection.end()
            self._ring()

    def _ring(self) -> None:
        if self._unread or self._connection.has_message or self.lost:
            os.eventfd_write(self._bell, 1)


class RemoteNode:
    """Starts ranks through the agent of another node."""

    def __init__(self, link: FollowerLink, ranks: Sequence[int]) -> None:
        self._link = link
        self._ranks = ranks

    def start_ranks(self, request: StartRanks) -> Answer["RemoteRanks"]:
        self._link.compare_clocks()
        answer = self._link.ask(request, messages.Started)
        return lambda: self._started(answer())

    def _started(self, answer: messages.Started | None) -> "RemoteRanks":
        if answer is None:
            raise NodeLostError(self._link.node, self._link.lost)
        if answer.error:
            msg = f"node {self._link.node} could not start its ranks: {answer.error}"
            raise OSError(msg)
        return RemoteRanks(self._link, dict(zip(self._ranks, answer.pids, strict=True)))


class RemoteRanks:
    """Ranks that the agent of another node has forked."""

    def __init__(self, link: FollowerLink, pids: Mapping[int, int]) -> None:
        self._link = link
        self._pids = pids
        self._alive = set(pids)
        self._selector: selectors.BaseSelector | None = None

    @property
    def ranks(self) -> Sequence[int]:
        return list(self._pids)

    @property
    def pids(self) -> Sequence[int]:
        return list(self._pids.values())

    def watch(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        look: Look = self._look
        for descriptor in self._link.descriptors:
            selector.register(descriptor, selectors.EVENT_READ, look)

    def _look(self) -> Sequence[RankEvent]:
        events = [_on_own_clock(event, self._link.ahead) for event in self._link.take()]
        self._alive -= {event.rank for event in events if isinstance(event, RankExit)}
        return [*events, *self._losses()]

    def _losses(self) -> Iterator[RankExit]:
        if not self._link.lost:
            return
        self._forget()
        lost = f"the agent of node {self._link.node} {self._link.lost}"
        for rank in sorted(self._alive):
            told_to_stop = self._link.was_told_to_stop
            yield RankExit(rank=rank, status=None, at=clock.now(), lost=lost, was_told_to_stop=told_to_stop)
        self._alive.clear()

    def _forget(self) -> None:
        selector, self._selector = self._selector, None
        if selector is not None and selector.get_map() is not None:  # else the gang has closed it already
            for descriptor in self._link.descriptors:
                selector.unregister(descriptor)

    def send(self, order: Order) -> None:
        self._link.send(messages.SendRanks(order=order))

    def stop(self, ranks: Collection[int], how: Stop) -> None:
        if ranks:
            self._link.send(messages.StopRanks(ranks=tuple(ranks), how=how))

    def examine(self, ranks: Collection[int]) -> Answer[Examination]:
        """See :meth:`allranks.agent.gangs.local_ranks.Ranks.examine`; long texts lack their middle."""
        answer = self._link.ask(messages.ExamineRanks(ranks=tuple(ranks)), messages.Examined)
        return lambda: self._examined(ranks, answer())

    def _examined(self, ranks: Collection[int], answer: messages.Examined | None) -> Examination:
        found = answer.ranks if answer else Examination()
        ahead = round(self._link.ahead * 1e9)
        return Examination(
            hangs={rank: found.hangs.get(rank, RankHang()) for rank in ranks},
            calls={
                rank: tuple(call._replace(at=call.at - ahead) for call in calls) for rank, calls in found.calls.items()
            },
        )

    def take_output(self, title: str) -> Answer[Mapping[int, Output]]:
        """See :meth:`allranks.agent.gangs.local_ranks.Ranks.take_output`; long texts lack their middle."""
        answer = self._link.ask(messages.TakeOutput(title=title), messages.Outputs)
        return lambda: outputs.ranks if (outputs := answer()) else {}

    def close(self) -> Answer[Sequence[KilledOrphan]]:
        self._forget()
        answer = self._link.ask(messages.CloseRanks(), messages.Left)
        return lambda: self._left(answer())

    def _left(self, answer: messages.Left | None) -> Sequence[KilledOrphan]:
        self._link.take()  # discard the remaining events of these ranks
        return answer.processes if answer else ()


def _on_own_clock(event: RankEvent, ahead: float) -> RankEvent:
    """A follower's rank event, with its time on the leader's clock, of which the follower's is so many seconds ahead.

    A single clock must order all events.
    """
    return replace(event, at=min(clock.now(), clock.ORIGIN + event.at - ahead))


class Leader:
    """This agent in its relation to its followers; a job on one node has none."""

    def __init__(self, config: AgentConfig, connections: Mapping[int, NodeConnection]) -> None:
        self._config = config
        self._links = [
            FollowerLink(node, connection, config.limits.limit("silence"))
            for node, connection in sorted(connections.items())
        ]

    def compare(self, own: CollectionDigest) -> tuple[list[CollectionFailure], list[str]]:
        """Wait until the others have collected, too, and check that they have collected the same tests.

        Returns collection failures of the others, but for those of modules that fail here, too; and notices, as
        sentences.
        """
        digests = _Digests(self._links, self._config.limits).call()
        same = {failure.nodeid for failure in own.failures if failure.nodeid}
        failures = [
            CollectionFailure(nodeid=failure.nodeid, text=f"On node {node}: {failure.text}")
            for node, digest in digests.items()
            for failure in digest.failures
            if failure.nodeid not in same
        ]
        differences = [difference(own, digest, node) for node, digest in digests.items()]
        if not failures and any(differences):
            raise NodesError("\n".join(filter(None, differences)))
        return failures, [*filter(None, (notice(own, digest, node) for node, digest in digests.items()))]

    def nodes(self) -> list[RemoteNode]:
        """The other nodes."""
        config = self._config
        return [
            RemoteNode(link, share_of(link.node, total=config.world_size, nodes=config.nodes)) for link in self._links
        ]

    def dismiss(self) -> None:
        """Tell the others that the job is done; if one of them is lost, its work since its last message is unknown."""
        answers = [(link, link.ask(messages.Dismiss(), messages.Dismissed)) for link in self._links]
        for link, answer in answers:
            if answer() is None:
                raise NodeLostError(link.node, link.lost)


class _Digests:
    """Waits for the collection digest of each follower."""

    def __init__(self, links: Sequence[FollowerLink], limits: TimeLimits) -> None:
        self._limit = limits.limit("assembly")
        self._absent = {link.node: link for link in links}
        self._digests: dict[int, CollectionDigest] = {}

    def call(self) -> Mapping[int, CollectionDigest]:
        deadline = time.monotonic() + self._limit.seconds
        with selectors.DefaultSelector() as selector:
            for link in self._absent.values():
                selector.register(link, selectors.EVENT_READ)
            while self._absent and (remaining := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(remaining):
                    if isinstance(key.fileobj, FollowerLink) and self._receive(key.fileobj):
                        selector.unregister(key.fileobj)
        if self._absent:
            msg = f"The agent of node {min(self._absent)} has not collected its tests within {self._limit.words()}."
            raise NodesError(msg)
        return {node: self._digests[node] for node in sorted(self._digests)}

    def _receive(self, link: FollowerLink) -> bool:
        """Read a follower's messages; returns whether its collection digest was among them."""
        digests = [message for message in link.receive() if isinstance(message, CollectionDigest)]
        if not digests and link.lost:
            msg = f"The agent of node {link.node} {link.lost}: it ended before it had collected its tests."
            raise NodesError(msg)
        for digest in digests[:1]:
            # An agent whose collection failed sends its digest again as it ends.
            self._digests[link.node] = digest
            del self._absent[link.node]
        return bool(digests)

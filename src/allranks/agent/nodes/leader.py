"""The agent of the first node: it runs the job, and has the agents of the other nodes start and stop their ranks.

A RemoteRanks does for the ranks of another node what a LocalRanks does for those of this node. The leader pings each
follower periodically, because a stopped process keeps its connection. An agent that is gone or silent is lost for good,
with all its ranks.
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
from allranks.agent.gangs.local_ranks import GangCommand, Inspection, Pending, ReadEvents, Stop
from allranks.agent.linux import Timer
from allranks.agent.nodes import messages
from allranks.agent.nodes.connection import ConnectionLostError, NodeConnection, NodesError
from allranks.agent.nodes.messages import Message
from allranks.agent.nodes.node import CollectionDigest, CollectionFailure, NodeLostError, difference, notice
from allranks.agent.orphans import KilledOrphan
from allranks.agent.output import Output
from allranks.agent.program import StartRanks
from allranks.protocol.config import AgentConfig, TimeLimit, share_of

_Kind = TypeVar("_Kind", bound=Message)

_PINGS = 4
"""The number of pings within `limits.silence`."""

_CLOCK_SAMPLES = 5
_CLOCK_VALID_FOR = 60.0
"""Seconds for which a comparison of two hosts' clocks is used."""


class FollowerLink:
    """The leader's connection to the agent of one other node."""

    def __init__(self, node: int, connection: NodeConnection, silence: TimeLimit) -> None:
        self.node = node
        self.lost = ""  # why the agent is lost, as in "is gone"; empty while it answers
        self.was_told_to_stop = False
        self.ahead = 0.0  # seconds by which the monotonic clock of its host is ahead of this host's
        self._clock_compared = -math.inf
        self._connection = connection
        self._silence = silence
        self._ping_timer = Timer(silence.seconds / _PINGS)
        # Wakes up the selector for messages that were read during a send or a wait: the socket is no longer readable.
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._events: list[RankEvent] = []
        self._pinged: float | None = None

    @property
    def descriptors(self) -> tuple[int, ...]:
        """At least one of these is readable when :meth:`take_events` has something to do."""
        return self._connection.fileno(), self._ping_timer.fileno(), self._wakeup

    def fileno(self) -> int:
        """Readable when :meth:`receive` has something to do."""
        return self._connection.fileno()

    def send(self, message: Message) -> None:
        """Send a message, unless the agent is lost."""
        if self.lost:
            return
        try:
            self._connection.send(message, self._silence.seconds)
        except ConnectionLostError as error:
            self._mark_lost(str(error))
        self._wake_up()

    def request(self, message: Message, kind: type[_Kind]) -> Pending[_Kind | None]:
        """Send a message whose answer is of this kind; the answer is None if the agent is lost."""
        deadline = time.monotonic() + self._silence.seconds
        self.send(message)

        def wait() -> _Kind | None:
            while not self.lost:
                answer = next((message for message in self.receive() if isinstance(message, kind)), None)
                if answer is not None:
                    self._wake_up()
                    return answer
                if not self.lost and not self._connection.wait(deadline):
                    self._mark_lost(f"did not answer within {self._silence.words()}")
            return None

        return wait

    def compare_clocks(self) -> None:
        """Measure :attr:`ahead`, unless that was done recently: clocks of hosts drift apart by some ms in a minute."""
        if clock.monotonic() - self._clock_compared < _CLOCK_VALID_FOR:
            return
        shortest = math.inf
        for _ in range(_CLOCK_SAMPLES):
            before = clock.monotonic()
            answer = self.request(messages.GetTime(), messages.Time)()
            after = clock.monotonic()
            if answer is None:
                return
            if after - before < shortest:
                # The clock was read between the two: the shortest round trip limits the error best.
                shortest = after - before
                self.ahead = answer.now - (before + after) / 2
        self._clock_compared = clock.monotonic()

    def receive(self) -> list[Message]:
        """Return the messages that have arrived; rank events are also kept for :meth:`take_events`."""
        if self.lost:
            return []
        received = self._connection.receive()
        if received:
            self._pinged = None
        self._events += [message for message in received if isinstance(message, RankEvent)]
        failure = next((message for message in received if isinstance(message, messages.Failed)), None)
        if failure is not None:
            self.was_told_to_stop = self.was_told_to_stop or failure.was_told_to_stop
            self._mark_lost(failure.why)
        elif self._connection.ended:
            self._mark_lost(self._connection.ended)
        return received

    def take_events(self) -> list[RankEvent]:
        """Return the rank events since the last call; pings the agent when the timer has expired."""
        is_ping_due = self._ping_timer.has_expired()
        with suppress(BlockingIOError):
            os.eventfd_read(self._wakeup)
        self.receive()
        if is_ping_due:
            self._ping()
        events, self._events = self._events, []
        return events

    def _ping(self) -> None:
        now = time.monotonic()
        if self._pinged is None:
            self._pinged = now
            self.send(messages.Ping())
        elif now - self._pinged > self._silence.seconds:
            self._mark_lost(f"did not answer within {self._silence.words()}")

    def _mark_lost(self, why: str) -> None:
        if not self.lost:
            self.lost = why
            # An agent that was only slow must not continue alone.
            self._connection.end()
            self._wake_up()

    def _wake_up(self) -> None:
        if self._events or self._connection.has_message or self.lost:
            os.eventfd_write(self._wakeup, 1)


class RemoteNode:
    """Starts ranks through the agent of another node."""

    def __init__(self, link: FollowerLink, ranks: Sequence[int]) -> None:
        self._link = link
        self._ranks = ranks

    def start_ranks(self, request: StartRanks) -> Pending["RemoteRanks"]:
        self._link.compare_clocks()
        answer = self._link.request(request, messages.Started)
        return lambda: self._started(answer())

    def _started(self, answer: messages.Started | None) -> "RemoteRanks":
        if answer is None:
            raise NodeLostError(self._link.node, self._link.lost)
        if answer.error:
            msg = f"node {self._link.node} could not start its ranks: {answer.error}"
            raise OSError(msg)
        return RemoteRanks(self._link, dict(zip(self._ranks, answer.pids, strict=True)))


class RemoteRanks:
    """Ranks on another node, which its agent has forked."""

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
        read_events: ReadEvents = self._read_events
        for descriptor in self._link.descriptors:
            selector.register(descriptor, selectors.EVENT_READ, read_events)

    def _read_events(self) -> Sequence[RankEvent]:
        events = [_on_own_clock(event, self._link.ahead) for event in self._link.take_events()]
        self._alive -= {event.rank for event in events if isinstance(event, RankExit)}
        return [*events, *self._lost_ranks()]

    def _lost_ranks(self) -> Iterator[RankExit]:
        if not self._link.lost:
            return
        self._unregister()
        lost = f"the agent of node {self._link.node} {self._link.lost}"
        for rank in sorted(self._alive):
            told_to_stop = self._link.was_told_to_stop
            yield RankExit(rank=rank, status=None, at=clock.now(), lost=lost, was_told_to_stop=told_to_stop)
        self._alive.clear()

    def _unregister(self) -> None:
        selector, self._selector = self._selector, None
        if selector is not None and selector.get_map() is not None:  # else the gang has closed it already
            for descriptor in self._link.descriptors:
                selector.unregister(descriptor)

    def send(self, command: GangCommand) -> None:
        self._link.send(command)

    def stop(self, ranks: Collection[int], how: Stop) -> None:
        if ranks:
            self._link.send(messages.StopRanks(ranks=tuple(ranks), how=how))

    def inspect(self, ranks: Collection[int], *, briefly: bool = False) -> Pending[Inspection]:
        """Inspect the ranks; the middle of long texts is cut out."""
        answer = self._link.request(messages.InspectRanks(ranks=tuple(ranks), briefly=briefly), Inspection)
        return lambda: self._inspected(ranks, answer() or Inspection())

    def _inspected(self, ranks: Collection[int], found: Inspection) -> Inspection:
        ahead = round(self._link.ahead * 1e9)
        return Inspection(
            hangs={rank: found.hangs.get(rank, RankHang()) for rank in ranks},
            calls={
                rank: tuple(call._replace(at=call.at - ahead) for call in calls) for rank, calls in found.calls.items()
            },
        )

    def take_output(self, title: str) -> Pending[Mapping[int, Output]]:
        """Take the output of the ranks; the middle of long texts is cut out."""
        answer = self._link.request(messages.TakeOutput(title=title), messages.Outputs)
        return lambda: outputs.ranks if (outputs := answer()) else {}

    def close(self) -> Pending[Sequence[KilledOrphan]]:
        self._unregister()
        answer = self._link.request(messages.CloseRanks(), messages.RanksClosed)
        return lambda: self._closed(answer())

    def _closed(self, answer: messages.RanksClosed | None) -> Sequence[KilledOrphan]:
        self._link.take_events()  # discard the remaining events of these ranks
        return answer.orphans if answer else ()


def _on_own_clock(event: RankEvent, ahead: float) -> RankEvent:
    """Convert the time of an event from a follower's clock, which is `ahead` seconds ahead, to the leader's clock."""
    return replace(event, at=min(clock.now(), clock.ORIGIN + event.at - ahead))


class Leader:
    """The leader's connections to all followers; none if the job has one node."""

    def __init__(self, config: AgentConfig, connections: Mapping[int, NodeConnection]) -> None:
        self._config = config
        self._links = [
            FollowerLink(node, connection, config.limits.limit("silence"))
            for node, connection in sorted(connections.items())
        ]

    def compare(self, own: CollectionDigest) -> tuple[list[CollectionFailure], list[str]]:
        """Wait until all followers have collected, and check that they have collected the same tests.

        Returns:
            The collection failures of followers, except for modules that also fail here; and notices, as sentences.

        Raises:
            NodesError: The collections differ, or one is missing.
        """
        digests = self._digests()
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

    def _digests(self) -> Mapping[int, CollectionDigest]:
        """Wait for the collection digest of each follower."""
        limit = self._config.limits.limit("assembly")
        deadline = time.monotonic() + limit.seconds
        digests: dict[int, CollectionDigest] = {}
        with selectors.DefaultSelector() as selector:
            for link in self._links:
                selector.register(link, selectors.EVENT_READ, link)
            while selector.get_map() and (remaining := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(remaining):
                    if (digest := _digest(key.data)) is not None:
                        digests[key.data.node] = digest
                        selector.unregister(key.data)
        missing = [link.node for link in self._links if link.node not in digests]
        if missing:
            msg = f"The agent of node {missing[0]} did not collect its tests within {limit.words()}."
            raise NodesError(msg)
        return dict(sorted(digests.items()))

    def nodes(self) -> list[RemoteNode]:
        """Return the other nodes."""
        config = self._config
        return [
            RemoteNode(link, share_of(link.node, total=config.world_size, nodes=config.nodes)) for link in self._links
        ]

    def dismiss(self) -> None:
        """End the job on all followers; if one is lost, its work since its last message is unknown."""
        answers = [(link, link.request(messages.Dismiss(), messages.Dismissed)) for link in self._links]
        for link, answer in answers:
            if answer() is None:
                raise NodeLostError(link.node, link.lost)


def _digest(link: FollowerLink) -> CollectionDigest | None:
    """Read a follower's messages; an agent whose collection failed sends its digest twice, and the first counts."""
    digest = next((message for message in link.receive() if isinstance(message, CollectionDigest)), None)
    if digest is None and link.lost:
        msg = f"The agent of node {link.node} {link.lost}: it ended before it had collected its tests."
        raise NodesError(msg)
    return digest

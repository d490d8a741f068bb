"""The agent of every node but the first: it starts and stops its ranks on the leader's requests.

It waits for the leader, its ranks and the end of the job at the same time. If the leader is gone, or the job is over,
it kills its ranks and exits.
"""

import selectors
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from allranks.agent import clock
from allranks.agent.channel import RankEvent, RankExit, RankHang
from allranks.agent.gangs.forks import ForkServerError
from allranks.agent.gangs.local_ranks import Ranks, ReadEvents, Stop
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

_TEXT_LIMIT = 16_000
"""Maximum characters of a text sent to the leader; the full text is in the files of this node."""


class Follower:
    """This agent's connection to the leader, which may take `silence` seconds to read a message."""

    def __init__(self, connection: NodeConnection, silence: float) -> None:
        self._connection = connection
        self._silence = silence

    def report(self, digest: CollectionDigest) -> None:
        """Report the collected tests to the leader."""
        with suppress(ConnectionLostError):  # the leader notices that the connection has ended
            self._connection.send(digest.shortened, self._silence)

    def serve(self, node: Node, end: JobEnd) -> None:
        """Handle the leader's requests until it dismisses this agent."""
        service = _Service(self._connection, node, self._silence, end)
        try:
            service.run()
        except ConnectionLostError as error:
            # The leader's own journal has more details than this agent could add.
            raise StopRequestedError from error
        except StopRequestedError:
            self._report_failure("received a request to stop", was_told_to_stop=True)
            raise
        except ForkServerError as error:
            self._report_failure(f"failed: the process that has imported the suite {error}")
            raise
        except Exception as error:
            self._report_failure(f"failed: {type(error).__name__}: {error}")
            raise

    def _report_failure(self, why: str, *, was_told_to_stop: bool = False) -> None:
        with suppress(ConnectionLostError):
            self._connection.send(messages.Failed(why=why, was_told_to_stop=was_told_to_stop), self._silence)


class _Service:
    """Serves the leader from the collection to the end of the job."""

    def __init__(self, connection: NodeConnection, node: Node, silence: float, end: JobEnd) -> None:
        self._connection = connection
        self._node = node
        self._silence = silence
        self._ranks: Ranks | None = None
        self._end = end
        self._is_dismissed = False
        self._selector = self._new_selector()

    def run(self) -> None:
        """Handle requests until the leader dismisses this agent."""
        try:
            while not self._is_dismissed:
                self._wait()
        finally:
            if self._ranks is not None:
                self._ranks.stop(self._ranks.ranks, Stop.KILL)
                self._close_ranks(self._ranks)

    def _new_selector(self) -> selectors.BaseSelector:
        """Return a selector without ranks; each gang needs one, because ranks do not unregister what they close."""
        selector = selectors.DefaultSelector()
        read_leader: ReadEvents = self._read_leader
        selector.register(self._connection, selectors.EVENT_READ, read_leader)
        selector.register(self._end, selectors.EVENT_READ, self._stop)
        return selector

    def _stop(self) -> Sequence[RankEvent]:
        raise StopRequestedError

    def _wait(self) -> None:
        """Wait for events and forward them; read the leader's messages last, because they may close the ranks."""
        ready = sorted(self._selector.select(), key=lambda item: item[0].fd == self._connection.fileno())
        readers: list[ReadEvents] = [key.data for key, _ in ready]
        for read_events in readers:
            for event in read_events():
                self._send(_portable(event))
        while self._connection.has_message:
            # It arrived during a send.
            self._read_leader()

    def _read_leader(self) -> Sequence[RankEvent]:
        for message in self._connection.receive():
            self._handle(message)
        if self._connection.ended and not self._is_dismissed:
            raise ConnectionLostError(self._connection.ended)
        return ()

    def _handle(self, message: Message) -> None:
        match message:
            case messages.Ping():
                self._send(messages.Pong())
            case messages.GetTime():
                self._send(messages.Time(now=clock.monotonic()))
            case StartRanks():
                self._send(self._start_ranks(message))
            case messages.Dismiss():
                self._is_dismissed = True
                self._send(messages.Dismissed())
            case _ if isinstance(message, messages.RankRequest) and self._ranks is not None:
                self._handle_rank_request(self._ranks, message)
            case _:
                msg = f"sent an unexpected message: {type(message).__name__}"
                raise ConnectionLostError(msg)

    def _handle_rank_request(self, ranks: Ranks, request: messages.RankRequest) -> None:
        match request:
            case messages.StopRanks():
                ranks.stop(request.ranks, request.how)
            case messages.InspectRanks():
                found = ranks.inspect(request.ranks, briefly=request.briefly)()
                hangs = {rank: _short(hang) for rank, hang in found.hangs.items()}
                self._send(replace(found, hangs=hangs))
            case messages.TakeOutput():
                outputs = ranks.take_output(request.title)()
                self._send(messages.Outputs(ranks={rank: _short(output) for rank, output in outputs.items()}))
            case messages.CloseRanks():
                self._send(messages.RanksClosed(orphans=tuple(self._close_ranks(ranks))))
            case command:
                ranks.send(command)

    def _start_ranks(self, request: StartRanks) -> messages.Started:
        try:
            self._ranks = self._node.start_ranks(request)()
        except OSError as error:
            return messages.Started(error=str(error) or type(error).__name__)
        self._ranks.watch(self._selector)
        return messages.Started(pids=tuple(self._ranks.pids))

    def _send(self, message: Message) -> None:
        self._connection.send(message, self._silence)

    def _close_ranks(self, ranks: Ranks) -> Sequence[KilledOrphan]:
        self._ranks = None
        self._selector.close()
        self._selector = self._new_selector()
        return ranks.close()()


def _portable(event: RankEvent) -> RankEvent:
    """Return an event with its time on this host's monotonic clock, and with long texts shortened."""
    event = replace(event, at=event.at - clock.ORIGIN)
    if isinstance(event, RankExit):
        return replace(_short(event), output=_short(event.output))
    return event


def _short(value: _Texts) -> _Texts:
    """Return a dataclass with the middle of its long texts cut out."""
    cut: dict[str, Any] = {}
    for name, part in vars(value).items():
        if isinstance(part, str):
            cut[name] = shorten(part, _TEXT_LIMIT)
        elif isinstance(part, Stacks):
            cut[name] = replace(part, text=shorten(part.text, _TEXT_LIMIT))
    return replace(value, **cut)

"""A following agent: it starts and ends its own ranks by order of the leading agent.

It waits for its leader, for its ranks and for the end of the job at the same time. If the leader is gone, or the job is
over, it ends its ranks and itself.
"""

import selectors
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace

from allranks.agent import clock
from allranks.agent.channel import COMMANDS
from allranks.agent.forks import ForkServerError
from allranks.agent.gangs.local_ranks import Look, RankEvent, RankExit, Ranks
from allranks.agent.gangs.orphans import KilledOrphan
from allranks.agent.gangs.output import Output
from allranks.agent.job_end import HangupError, JobEnd
from allranks.agent.nodes.connection import ConnectionLostError, Message, NodeConnection
from allranks.agent.nodes.node import CollectionDigest, Node, Orders
from allranks.protocol.outcomes import shorten
from allranks.protocol.typed_json import build_named, told

_SENT = 16_000
"""Maximum characters of a text sent to the leader: files of this node have all of it."""


class Follower:
    """This agent in its relation to the leader.

    Args:
        silence: Seconds that the leader may take to read a message.
    """

    def __init__(self, connection: NodeConnection, silence: float) -> None:
        self._connection = connection
        self._silence = silence

    def report(self, digest: CollectionDigest) -> None:
        """Report the collected tests to the leader."""
        with suppress(ConnectionLostError):  # the end of the connection tells the leader the same
            self._send({"digest": digest.as_message()})

    def serve(self, node: Node, end: JobEnd) -> None:
        """Carry out the leader's commands until it dismisses this agent.

        Raises:
            HangupError: The job was ended from outside, or its leader is gone.
        """
        service = _Service(self._connection, node, self._silence, end)
        try:
            service.run()
        except ConnectionLostError as error:
            # The leader's own journal has more details than this one could.
            raise HangupError from error
        except HangupError:
            self._report_failure("was told to stop", told_to_stop=True)
            raise
        except ForkServerError as error:
            self._report_failure(f"could not go on: the process that has imported the suite {error}")
            raise
        except Exception as error:
            self._report_failure(f"could not go on: {type(error).__name__}: {error}")
            raise

    def _report_failure(self, why: str, **further: bool) -> None:
        with suppress(ConnectionLostError):
            self._send({"failed": why, **further})

    def _send(self, message: Message) -> None:
        self._connection.send(message, self._silence)


class _Service:
    """Serves the leader from the collection to the end of the job.

    Args:
        silence: Seconds that the leader may take to read a message.
    """

    def __init__(self, connection: NodeConnection, node: Node, silence: float, end: JobEnd) -> None:
        self._connection = connection
        self._node = node
        self._silence = silence
        self._ranks: Ranks | None = None
        self._end = end
        self._is_over = False
        self._selector = self._fresh_selector()

    def run(self) -> None:
        """Carry out commands until the leader dismisses this agent.

        Raises:
            HangupError: The job was ended from outside.
            ConnectionLostError: The leader is gone.
        """
        try:
            while not self._is_over:
                self._turn()
        finally:
            if self._ranks is not None:
                self._ranks.kill(self._ranks.ranks)
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
        raise HangupError

    def _turn(self) -> None:
        """Wait, and forward events; read the leader's messages last, because they may close the ranks."""
        ready = self._selector.select()
        looks: list[Look] = [
            key.data for key, _ in sorted(ready, key=lambda each: each[0].fd == self._connection.fileno())
        ]
        for look in looks:
            for event in look():
                self._send({"event": _message_of(event)})
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
        match message["do"]:
            case "ping":
                self._send({"alive": True})
            case "tell_time":
                self._answer({"now": clock.monotonic()})
            case "start_ranks":
                self._answer(self._start_ranks(Orders(**message["orders"])))
            case "dismiss":
                self._is_over = True
                self._answer({})
            case command:
                self._lead(self._started_ranks, str(command), message)

    @property
    def _started_ranks(self) -> Ranks:
        if self._ranks is None:
            msg = "sent a command for ranks before it started any"
            raise ConnectionLostError(msg)
        return self._ranks

    def _lead(self, ranks: Ranks, command: str, message: Message) -> None:
        match command:
            case "send":
                ranks.send(build_named(message["command"], COMMANDS))
            case "disturb":
                ranks.disturb(message["how"])
            case "signal":
                ranks.signal(message["ranks"], message["number"])
            case "freeze":
                ranks.freeze(message["ranks"])
            case "kill":
                ranks.kill(message["ranks"])
            case "find":
                found = ranks.find(message["ranks"])
                self._answer({str(rank): _short(asdict(hang)) for rank, hang in found.items()})
            case "calls":
                boards = {str(rank): list(calls) for rank, calls in ranks.calls().items()}
                self._answer(boards)
            case "put_output_away":
                outputs = ranks.put_output_away(message["title"])
                self._answer({str(rank): _short(asdict(output)) for rank, output in outputs.items()})
            case "close":
                self._answer({"left": [asdict(process) for process in self._disband(ranks)]})

    def _start_ranks(self, orders: Orders) -> Message:
        try:
            self._ranks = self._node.start_ranks(orders)
        except OSError as error:
            return {"error": str(error)}
        self._ranks.watch(self._selector)
        return {"pids": list(self._ranks.pids)}

    def _answer(self, answer: Message) -> None:
        self._send({"answer": answer})

    def _send(self, message: Message) -> None:
        self._connection.send(message, self._silence)

    def _disband(self, ranks: Ranks) -> Sequence[KilledOrphan]:
        self._ranks = None
        self._selector.close()
        self._selector = self._fresh_selector()
        return ranks.close()


def _message_of(event: RankEvent) -> Message:
    at = event.at - clock.ORIGIN  # on the monotonic clock of this host
    if not isinstance(event, RankExit):
        return dict(told(replace(event, at=at)))
    output = Output(stdout=_cut(event.output.stdout), stderr=_cut(event.output.stderr))
    return asdict(replace(event, at=at, stacks=_cut(event.stacks), output=output))


def _short(fields: Message) -> Message:
    return {name: _cut(value) if isinstance(value, str) else value for name, value in fields.items()}


def _cut(text: str) -> str:
    return shorten(text, _SENT)

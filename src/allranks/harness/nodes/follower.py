"""A following agent: it starts and ends its own ranks by order of the leading agent.

It waits for its leader, for its ranks and for the end of the job at the same time. If the leader is gone, or the job is
over, it ends its ranks and itself.
"""

import selectors
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace

from allranks.harness.channel import command_of
from allranks.harness.forks import ForkServerError
from allranks.harness.gangs.local_ranks import Look, RankEvent, RankExit, Ranks
from allranks.harness.gangs.orphans import KilledOrphan
from allranks.harness.gangs.output import Output
from allranks.harness.job_end import HangupError, JobEnd
from allranks.harness.nodes.connection import Message, NodeConnection, WireError
from allranks.harness.nodes.node import CollectionDigest, Node, Orders
from allranks.outcomes import shorten
from allranks.typed_json import told

_SENT = 16_000
"""Maximum characters of a text sent to the leader: files of this node have all of it."""


class Follower:
    """This agent in its relation to the leader.

    Args:
        wire: The authenticated connection to the leader.
        silence: Seconds that the leader may take to read a message.
    """

    def __init__(self, wire: NodeConnection, silence: float) -> None:
        self._wire = wire
        self._silence = silence

    def report(self, roll: CollectionDigest) -> None:
        """Report the collected tests to the leader."""
        with suppress(WireError):  # the end of the connection tells the leader the same
            self._say({"roll": roll.as_message()})

    def serve(self, node: Node, end: JobEnd) -> None:
        """Carry out the leader's commands until it dismisses this agent.

        Args:
            node: Starts ranks on this node.
            end: Signals the end of the job.

        Raises:
            HangupError: The job was ended from outside, or its leader is gone.
        """
        service = _Service(self._wire, node, self._silence, end)
        try:
            service.run()
        except WireError as error:
            # The leader's own journal has more details than this one could.
            raise HangupError from error
        except HangupError:
            self._say_last("was told to stop")
            raise
        except ForkServerError as error:
            self._say_last(f"could not go on: the process that has imported the suite {error}")
            raise
        except Exception as error:
            self._say_last(f"could not go on: {type(error).__name__}: {error}")
            raise

    def _say_last(self, why: str) -> None:
        with suppress(WireError):
            self._say({"failed": why})

    def _say(self, message: Message) -> None:
        self._wire.send(message, self._silence)


class _Service:
    """Serves the leader from the collection to the end of the job.

    Args:
        wire: The connection to the leader.
        node: Starts ranks on this node.
        silence: Seconds that the leader may take to read a message.
        end: Signals the end of the job.
    """

    def __init__(self, wire: NodeConnection, node: Node, silence: float, end: JobEnd) -> None:
        self._wire = wire
        self._node = node
        self._silence = silence
        self._crew: Ranks | None = None
        self._end = end
        self._is_over = False
        self._selector = self._fresh_selector()

    def run(self) -> None:
        """Carry out commands until the leader dismisses this agent.

        Raises:
            HangupError: The job was ended from outside.
            WireError: The leader is gone.
        """
        try:
            while not self._is_over:
                self._turn()
        finally:
            if self._crew is not None:
                self._crew.kill(self._crew.ranks)
                self._disband(self._crew)

    def _fresh_selector(self) -> selectors.BaseSelector:
        """A new selector for each gang, whose ranks close their descriptors without unregistering them."""
        selector = selectors.DefaultSelector()
        looks: dict[int, Look] = {self._wire.fileno(): self._look_at_leader, self._end.fileno(): self._look_at_end}
        for descriptor, look in looks.items():
            selector.register(descriptor, selectors.EVENT_READ, look)
        return selector

    def _look_at_end(self) -> Sequence[RankEvent]:
        raise HangupError

    def _turn(self) -> None:
        """Wait, and forward events; read the leader's messages last, because they may close the ranks."""
        ready = self._selector.select()
        looks: list[Look] = [key.data for key, _ in sorted(ready, key=lambda each: each[0].fd == self._wire.fileno())]
        for look in looks:
            for happening in look():
                self._say({"happening": _told(happening)})
        while self._wire.has_message:
            # It arrived during a send.
            self._look_at_leader()

    def _look_at_leader(self) -> Sequence[RankEvent]:
        for message in self._wire.receive():
            self._obey(message)
        if self._wire.ended and not self._is_over:
            raise WireError(self._wire.ended)
        return ()

    def _obey(self, said: Message) -> None:
        match said["do"]:
            case "ping":
                self._say({"alive": True})
            case "muster":
                self._answer(self._muster(Orders(**said["orders"])))
            case "dismiss":
                self._is_over = True
                self._answer({})
            case deed:
                self._lead(self._mustered, str(deed), said)

    @property
    def _mustered(self) -> Ranks:
        if self._crew is None:
            msg = "the leader speaks of ranks that nobody has started"
            raise WireError(msg)
        return self._crew

    def _lead(self, crew: Ranks, deed: str, said: Message) -> None:
        match deed:
            case "send":
                crew.send(command_of(said["command"]))
            case "signal":
                crew.signal(said["ranks"], said["number"])
            case "freeze_descendants":
                crew.freeze_descendants(said["ranks"])
            case "kill":
                crew.kill(said["ranks"])
            case "find":
                found = crew.find(said["ranks"])
                self._answer({str(rank): _short(asdict(stuck)) for rank, stuck in found.items()})
            case "calls":
                self._answer({str(rank): list(calls) for rank, calls in crew.calls().items()})
            case "put_output_away":
                outputs = crew.put_output_away(said["title"])
                self._answer({str(rank): _short(asdict(output)) for rank, output in outputs.items()})
            case "close":
                self._answer({"left": [asdict(process) for process in self._disband(crew)]})

    def _muster(self, orders: Orders) -> Message:
        try:
            self._crew = self._node.muster(orders)
        except OSError as error:
            return {"error": str(error)}
        self._crew.watch(self._selector)
        return {"pids": list(self._crew.pids)}

    def _answer(self, answer: Message) -> None:
        self._say({"answer": answer})

    def _say(self, message: Message) -> None:
        self._wire.send(message, self._silence)

    def _disband(self, crew: Ranks) -> Sequence[KilledOrphan]:
        self._crew = None
        self._selector.close()
        self._selector = self._fresh_selector()
        return crew.close()


def _told(happening: RankEvent) -> Message:
    if not isinstance(happening, RankExit):
        return {"rank": happening.rank, "report": told(happening.report), "has_strangers": happening.has_strangers}
    output = Output(stdout=_cut(happening.output.stdout), stderr=_cut(happening.output.stderr))
    return asdict(replace(happening, stacks=_cut(happening.stacks), output=output))


def _short(fields: Message) -> Message:
    return {name: _cut(value) if isinstance(value, str) else value for name, value in fields.items()}


def _cut(text: str) -> str:
    return shorten(text, _SENT)

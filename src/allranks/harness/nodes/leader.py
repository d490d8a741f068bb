"""What the leading agent of a job has to do with the agents of the other nodes."""

import selectors
import time
from collections.abc import Mapping, Sequence

from allranks.harness.config import AgentConfig, TimeLimits, share_of
from allranks.harness.nodes.gate import NodesError
from allranks.harness.nodes.node import NodeLostError
from allranks.harness.nodes.remote import Link, RemoteNode
from allranks.harness.nodes.roll import Failure, Roll, difference
from allranks.harness.nodes.wire import Wire


class Leader:
    """This agent towards its followers, of which a job on one node has none.

    Args:
        config: The job.
        wires: The connection to each follower, by its node.
    """

    def __init__(self, config: AgentConfig, wires: Mapping[int, Wire]) -> None:
        self._config = config
        self._links = [Link(node, wire, config.limits.silence) for node, wire in sorted(wires.items())]

    def compare(self, own: Roll) -> list[Failure]:
        """Wait until the others have collected, too, and see that they have collected the same.

        Returns:
            What others could not collect.

        Raises:
            NodesError: They have collected something else, or have not come as far.
        """
        rolls = _Rolls(self._links, self._config.limits).call()
        failures = [
            Failure(nodeid=failure.nodeid, text=f"On node {node}: {failure.text}")
            for node, roll in rolls.items()
            for failure in roll.failures
        ]
        differences = [difference(own, roll, node) for node, roll in rolls.items()]
        if not failures and any(differences):
            raise NodesError("\n".join(filter(None, differences)))
        return failures

    def nodes(self) -> list[RemoteNode]:
        """The other nodes."""
        config = self._config
        return [
            RemoteNode(link, share_of(link.node, total=config.world_size, nodes=config.nodes)) for link in self._links
        ]

    def dismiss(self) -> None:
        """Tell the others that all is done.

        Raises:
            NodeLostError: One of them is not there any more: what it has done since it was last heard is not known.
        """
        for link in self._links:
            if link.ask({"do": "dismiss"}) is None:
                raise NodeLostError(link.node, link.lost)


class _Rolls:
    """Waits for what each follower has collected."""

    def __init__(self, links: Sequence[Link], limits: TimeLimits) -> None:
        self._limit = limits.assembly
        self._absent = {link.node: link for link in links}
        self._rolls: dict[int, Roll] = {}

    def call(self) -> Mapping[int, Roll]:
        deadline = time.monotonic() + self._limit
        with selectors.DefaultSelector() as selector:
            for link in self._absent.values():
                selector.register(link, selectors.EVENT_READ)
            while self._absent and (remaining := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(remaining):
                    if isinstance(key.fileobj, Link) and self._hear(key.fileobj):
                        selector.unregister(key.fileobj)
        if self._absent:
            msg = f"The agent of node {min(self._absent)} has not collected its tests within {self._limit:g} s."
            raise NodesError(msg)
        return {node: self._rolls[node] for node in sorted(self._rolls)}

    def _hear(self, link: Link) -> bool:
        """Take what a follower says; whether it was its roll."""
        rolls = [heard["roll"] for heard in link.hear() if "roll" in heard]
        if not rolls and link.lost:
            msg = f"The agent of node {link.node} {link.lost}: it ended before it had collected its tests."
            raise NodesError(msg)
        for roll in rolls[:1]:
            # An agent that has failed says so once more as it ends.
            self._rolls[link.node] = Roll.from_message(roll)
            del self._absent[link.node]
        return bool(rolls)

"""A node: where some ranks of each gang are started."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from allranks.harness.gangs.crew import Crew


@dataclass(frozen=True, kw_only=True)
class Orders:
    """What the ranks of one gang are started for, the same on every node; made of JSON's types alone.

    Attributes:
        gang: Number of the gang in its job, from 1.
        url: What ``init_process_group`` takes as ``init_method``; None for a gang without a process group.
        environment: Variables that the ranks need to meet.
        launches: The gang is a driver, which starts the ranks of its tests itself.
        has_many_forks: Many more will follow.
        preload: Modules that ranks before these imported late: imported once before the fork, they cost no rank again.
    """

    gang: int
    url: str | None
    environment: dict[str, str] = field(default_factory=dict)
    launches: bool = False
    has_many_forks: bool = False
    preload: Sequence[str] = ()


class NodeLostError(Exception):
    """The agent of a node does not answer any more, and cannot come back.

    Args:
        node: The node.
        how: What became of the agent, as in "is gone".

    Attributes:
        node: The node.
    """

    def __init__(self, node: int, how: str) -> None:
        super().__init__(f"The agent of node {node} {how}.")
        self.node = node


class Node(Protocol):
    """Starts the ranks of each gang that belong to one node."""

    def muster(self, orders: Orders) -> Crew:
        """Start this node's ranks of a gang.

        Raises:
            OSError: They cannot be started; none of them is left.
            NodeLostError: Nobody is there who could start them.
        """


def muster_all(nodes: Iterable[Node], orders: Orders) -> list[Crew]:
    """Start the ranks of a gang on all nodes.

    Raises:
        OSError: One node cannot start its ranks; no rank is left on any.
        NodeLostError: One node is lost; no rank is left on the others.
    """
    crews: list[Crew] = []
    try:
        for node in nodes:
            crews.append(node.muster(orders))  # noqa: PERF401 - those that there are have to be ended when one fails
    except (OSError, NodeLostError):
        for crew in crews:
            crew.kill(crew.ranks)
            crew.close()
        raise
    return crews

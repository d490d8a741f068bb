"""A node: where ranks are started, and whether all nodes collected the same tests."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

from allranks.agent.gangs.local_ranks import Answer, Ranks, Stop
from allranks.agent.program import StartRanks
from allranks.protocol.outcomes import named
from allranks.protocol.parameter_values import REMEDY, VARIABLE, changes

_TEXT_LIMIT = 16_000
_MOST_FAILURES = 50


@dataclass(frozen=True, kw_only=True)
class CollectionFailure:
    """A collection failure of an agent."""

    nodeid: str  # what could not be collected; empty for the suite as a whole
    text: str


@dataclass(frozen=True, kw_only=True)
class CollectionDigest:
    """What one agent has collected."""

    tests: tuple[str, ...] = ()  # Node ids, in the order of execution
    digests: tuple[str, ...] = ()  # those of the parameter values of these tests, in the same order
    failures: tuple[CollectionFailure, ...] = ()
    torch: str = ""  # version; empty if it could not be imported
    python: str = ""  # version
    lacks: str = ""  # what its node lacks for the cell, in words; empty for nothing

    @property
    def parameters(self) -> Mapping[str, str]:
        """The digest of the parameter values of each test."""
        return dict(zip(self.tests, self.digests, strict=False))

    @property
    def shortened(self) -> Self:
        """The same with long texts and lists of failures cut, to be sent."""
        failures = [CollectionFailure(nodeid=each.nodeid, text=each.text[-_TEXT_LIMIT:]) for each in self.failures]
        return replace(self, failures=tuple(failures[:_MOST_FAILURES]))


def difference(leader: CollectionDigest, other: CollectionDigest, node: int) -> str:
    """The difference between the digests of node 0 and another node, as a sentence; empty if there is none."""
    for name, word in (("torch", "torch"), ("python", "Python")):
        ours, theirs = getattr(leader, name), getattr(other, name)
        if ours != theirs:
            return f"Node 0 has {word} {ours}, and node {node} has {word} {theirs}."
    if leader.lacks != other.lacks:
        here, there = (digest.lacks or "nothing is lacking" for digest in (leader, other))
        return f"The nodes have different hardware; node 0: {here}; node {node}: {there}."
    if leader.tests != other.tests:
        return _difference_of_tests(leader.tests, other.tests, node)
    if differing := changes(leader.parameters, other.parameters).other_values:
        return f"Nodes 0 and {node} have other parameter values under the same ids: {named(differing)}.\n{REMEDY}"
    return ""


def notice(leader: CollectionDigest, other: CollectionDigest, node: int) -> str:
    """A difference between the collections of node 0 and another node that is no error, as a sentence; else empty."""
    differing = changes(leader.parameters, other.parameters).other_variables
    return f"Nodes 0 and {node} have other {VARIABLE}: {named(differing)}." if differing else ""


def _difference_of_tests(ours: Sequence[str], theirs: Sequence[str], node: int) -> str:
    here, there = set(ours), set(theirs)
    only = [
        f"only on node {where}: {named([test for test in tests if test not in others])}"
        for where, tests, others in ((0, ours, there), (node, theirs, here))
        if not set(tests) <= others
    ]
    if only:
        return f"Nodes 0 and {node} have collected different tests; {'; '.join(only)}."
    place = next((pair for pair in zip(ours, theirs, strict=False) if pair[0] != pair[1]), ("", ""))
    return (
        f"Nodes 0 and {node} have collected the same tests in different orders: "
        f"{place[0]} on node 0 comes where {place[1]} comes on node {node}."
    )


class NodeLostError(Exception):
    """The agent of a node no longer answers, and cannot come back."""

    def __init__(self, node: int, how: str) -> None:
        super().__init__(f"The agent of node {node} {how}.")
        self.node = node


class Node(Protocol):
    """Starts the ranks of each gang that belong to one node."""

    def start_ranks(self, request: StartRanks) -> Answer[Ranks]:
        """Start this node's ranks of a gang.

        The answer raises OSError if they cannot be started, in which case none of them is left, and NodeLostError if
        the agent of the node is lost.
        """


def start_gang(nodes: Iterable[Node], request: StartRanks) -> list[Ranks]:
    """Start the ranks of a gang on all nodes; if one node cannot, no rank is left on the others."""
    started: list[Ranks] = []
    failures: list[Exception] = []
    for starting in [node.start_ranks(request) for node in nodes]:
        try:
            started.append(starting())
        except Exception as error:  # noqa: BLE001 - the other nodes have been asked, and their ranks must not be left
            failures.append(error)
    if failures:
        for node_ranks in started:
            node_ranks.stop(node_ranks.ranks, Stop.KILL)
            node_ranks.close()()
        raise failures[0]
    return started

"""A node of a job: where ranks are started, and the comparison of what all nodes have collected."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

from allranks.agent.gangs.local_ranks import Pending, Ranks, Stop
from allranks.agent.program import StartRanks
from allranks.protocol.outcomes import named
from allranks.protocol.parameter_values import REMEDY, VARIABLE, changes

_TEXT_LIMIT = 16_000
_MAX_FAILURES = 50


@dataclass(frozen=True, kw_only=True)
class CollectionFailure:
    """A test, module or suite that an agent could not collect."""

    nodeid: str  # what could not be collected; empty for the whole suite
    text: str


@dataclass(frozen=True, kw_only=True)
class CollectionDigest:
    """What one agent has collected."""

    tests: tuple[str, ...] = ()  # node ids, in the order of execution
    digests: tuple[str, ...] = ()  # of the parameter values of these tests
    failures: tuple[CollectionFailure, ...] = ()
    torch: str = ""  # version; empty if the import failed
    python: str = ""  # version
    missing_hardware: str = ""  # what this node lacks for the cell; empty for nothing

    @property
    def parameters(self) -> Mapping[str, str]:
        """The digest of the parameter values of each test."""
        return dict(zip(self.tests, self.digests, strict=False))

    @property
    def shortened(self) -> Self:
        """This digest, with long texts and lists of failures cut for sending."""
        failures = (
            CollectionFailure(nodeid=failure.nodeid, text=failure.text[-_TEXT_LIMIT:]) for failure in self.failures
        )
        return replace(self, failures=tuple(failures)[:_MAX_FAILURES])


def difference(leader: CollectionDigest, other: CollectionDigest, node: int) -> str:
    """Describe in one sentence why node 0 and another node cannot run the same job; empty if they can."""
    for name, title in (("torch", "torch"), ("python", "Python")):
        ours, theirs = getattr(leader, name), getattr(other, name)
        if ours != theirs:
            return f"Node 0 has {title} {ours}, and node {node} has {title} {theirs}."
    if leader.missing_hardware != other.missing_hardware:
        here, there = (digest.missing_hardware or "nothing is missing" for digest in (leader, other))
        return f"The nodes have different hardware; node 0: {here}; node {node}: {there}."
    if leader.tests != other.tests:
        return _difference_of_tests(leader.tests, other.tests, node)
    if differing := changes(leader.parameters, other.parameters).other_values:
        return f"Nodes 0 and {node} have different parameter values under the same ids: {named(differing)}.\n{REMEDY}"
    return ""


def notice(leader: CollectionDigest, other: CollectionDigest, node: int) -> str:
    """Describe in one sentence a harmless difference between node 0 and another node; empty if there is none."""
    differing = changes(leader.parameters, other.parameters).other_variables
    return f"Nodes 0 and {node} have different {VARIABLE}: {named(differing)}." if differing else ""


def _difference_of_tests(ours: Sequence[str], theirs: Sequence[str], node: int) -> str:
    here, there = set(ours), set(theirs)
    only = [
        f"only on node {where}: {named([test for test in tests if test not in others])}"
        for where, tests, others in ((0, ours, there), (node, theirs, here))
        if not set(tests) <= others
    ]
    if only:
        return f"Nodes 0 and {node} have collected different tests; {'; '.join(only)}."
    own, other = next((pair for pair in zip(ours, theirs, strict=False) if pair[0] != pair[1]), ("", ""))
    return (
        f"Nodes 0 and {node} have collected the same tests in different orders: "
        f"where node 0 has {own}, node {node} has {other}."
    )


class NodeLostError(Exception):
    """The agent of a node no longer answers, and cannot come back."""

    def __init__(self, node: int, how: str) -> None:
        super().__init__(f"The agent of node {node} {how}.")
        self.node = node


class Node(Protocol):
    """Starts one node's ranks of each gang."""

    def start_ranks(self, request: StartRanks) -> Pending[Ranks]:
        """Start this node's ranks of a gang.

        Waiting for the result raises OSError if the ranks could not be started, in which case none of them is left, and
        NodeLostError if the agent of the node is lost.
        """


def start_gang(nodes: Iterable[Node], request: StartRanks) -> list[Ranks]:
    """Start the ranks of a gang on all nodes; if one node fails, kill those of the others."""
    started: list[Ranks] = []
    failures: list[Exception] = []
    for wait in [node.start_ranks(request) for node in nodes]:
        try:
            started.append(wait())
        except Exception as error:  # noqa: BLE001 - the other nodes start ranks, too, which must be killed
            failures.append(error)
    if failures:
        for node_ranks in started:
            node_ranks.stop(node_ranks.ranks, Stop.KILL)
            node_ranks.close()()
        raise failures[0]
    return started

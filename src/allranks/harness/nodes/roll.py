"""What an agent has collected, and whether the agents of a job have collected the same."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Self

from allranks.harness.nodes.wire import Message

_NAMED = 3
_TEXT_LIMIT = 16_000
_MOST_FAILURES = 50


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Something that an agent could not collect, or why it could collect nothing.

    Attributes:
        nodeid: What; empty for the suite as a whole.
    """

    nodeid: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Roll:
    """What one agent has collected.

    Attributes:
        tests: Node ids, in the order in which they are to be run.
        failures: What could not be collected.
        torch: Version; empty where it could not be imported.
        python: Version.
        lacks: What its node lacks for the cell, in words; empty for nothing.
    """

    tests: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()
    torch: str = ""
    python: str = ""
    lacks: str = ""

    def as_message(self) -> Message:
        """It in JSON's types."""
        failures = [Failure(nodeid=each.nodeid, text=each.text[-_TEXT_LIMIT:]) for each in self.failures]
        return asdict(replace(self, failures=tuple(failures[:_MOST_FAILURES])))

    @classmethod
    def from_message(cls, message: Message) -> Self:
        """What :meth:`as_message` has made."""
        failures = tuple(Failure(**failure) for failure in message["failures"])
        return cls(**{**message, "tests": tuple(message["tests"]), "failures": failures})


def difference(leader: Roll, other: Roll, node: int) -> str:
    """In what the rolls of node 0 and of another node differ, in a sentence; empty for nothing."""
    for name, word in (("torch", "torch"), ("python", "Python")):
        ours, theirs = getattr(leader, name), getattr(other, name)
        if ours != theirs:
            return f"Node 0 has {word} {ours}, and node {node} has {word} {theirs}."
    if leader.lacks != other.lacks:
        here, there = (roll.lacks or "nothing is lacking" for roll in (leader, other))
        return f"The nodes have different hardware; node 0: {here}; node {node}: {there}."
    return "" if leader.tests == other.tests else _difference_of_tests(leader.tests, other.tests, node)


def _difference_of_tests(ours: Sequence[str], theirs: Sequence[str], node: int) -> str:
    here, there = set(ours), set(theirs)
    only = [
        f"only on node {where}: {_named([test for test in tests if test not in others])}"
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


def _named(tests: Sequence[str]) -> str:
    more = len(tests) - _NAMED
    return ", ".join(tests[:_NAMED]) + (f" and {more} more" if more > 0 else "")

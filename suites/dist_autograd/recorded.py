"""The graph that calls record in a context, in words."""

from typing import Any, NamedTuple

from . import engine


class Recorded(NamedTuple):
    """What a context has recorded on one worker.

    Attributes:
        sent: For each message with tensors that this worker sent, where the gradients of these tensors go; sorted.
        received: The number of messages with such tensors that it received.
    """

    sent: tuple[str, ...]
    received: int


NOTHING = Recorded((), 0)


def recorded(context: int) -> Recorded:
    """What this worker has recorded in the context."""
    sent = sorted(_ways(send) for send in engine.sends(context))
    return Recorded(tuple(sent), len(engine.receives(context)))


def _ways(node: Any) -> str:  # noqa: ANN401 - torch has many types of nodes
    return ", ".join(_words(following) for following, _ in node.next_functions)


def _words(node: Any) -> str:  # noqa: ANN401 - as above
    name = node.name().split("::")[-1]
    return f"{name}({_ways(node)})" if node.next_functions else name

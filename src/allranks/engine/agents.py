"""The agents of a job while it runs, one for each node, the leading one first: heard together and ended in good order.

Whatever an engine's agents are, processes or containers, what a run may do with them is the same.
"""

import os
import selectors
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from allranks.engine.protocol import JobExit, NodeExit, RecordSink
from allranks.engine.stream import Damage
from allranks.records import NodesMet, Record

STOP_GRACE = 8.0
"""Seconds for an agent to stop its ranks (three seconds at the most) and to write its results."""

_LOOK_AGAIN = 1.0
_LATE = 4.0
"""Seconds beyond a look that nobody comes late by: writing down what has come takes less."""


class Agent(Protocol):
    """The agent of one node.

    Attributes:
        has_ended: Nothing more will come of it.
    """

    has_ended: bool

    @property
    def descriptors(self) -> Collection[int]:
        """One of these is readable when :meth:`hear` has something to do."""

    def hear(self, ready: Collection[int]) -> Iterable[Record | Damage]:
        """The records that have come; at its end, notes it.

        Args:
            ready: Those of its descriptors that are readable.
        """

    def go(self) -> None:
        """Give it its turn; nothing where it has ended already."""

    def hang_up(self) -> None:
        """Have it end its ranks and itself; idempotent."""

    def resume(self) -> None:
        """Let it go on if somebody has stopped it: it has its ranks to end."""

    def end(self, deadline: float) -> None:
        """See to it that it has ended; at the deadline (monotonic) it is killed. Idempotent."""

    def exit(self) -> NodeExit:
        """How it has ended.

        Raises:
            EngineError: The engine has lost it.
        """


A = TypeVar("A", bound=Agent)


class JobOfAgents(Generic[A]):
    """What both engines' jobs do with their agents.

    Args:
        agents: The agents, the leading one first.
        limit: Seconds that they may take once it is their turn.
    """

    def __init__(self, agents: Sequence[A], limit: float) -> None:
        self._leader, *self._followers = agents
        self._agents = agents
        self._limit = limit
        self._held_up = 0.0
        self._deadline = self._now() + limit
        self._have_met = False
        self._bell = os.eventfd(0)

    def go(self) -> None:
        """See :meth:`allranks.engine.protocol.RunningJob.go`."""
        self._deadline = self._now() + self._limit
        self._leader.go()

    def _now(self) -> float:
        """Seconds on a clock that stands still while this process is stopped, and its machine asleep."""
        return time.monotonic() - self._held_up

    def hang_up(self) -> None:
        """See :meth:`allranks.engine.protocol.RunningJob.hang_up`."""
        self._deadline = min(self._deadline, self._now() + STOP_GRACE)
        self._leader.hang_up()
        os.eventfd_write(self._bell, 1)  # whoever reads has a new deadline

    def wait(self, sink: RecordSink) -> JobExit:
        """See :meth:`allranks.engine.protocol.RunningJob.wait`."""
        timed_out = not self._read_until(self._is_over, lambda: self._deadline, sink)
        self._stop_all(sink)
        leader, *followers = [agent.exit() for agent in self._agents]
        return JobExit(
            status=leader.status,
            timed_out=timed_out,
            out_of_memory=leader.out_of_memory,
            output=leader.output,
            followers=tuple(followers),
        )

    def _is_over(self) -> bool:
        """The leader has ended, or waits in vain for an agent that has ended before the two have met."""
        return self._leader.has_ended or (
            not self._have_met and any(follower.has_ended for follower in self._followers)
        )

    def stop(self) -> None:
        """See :meth:`allranks.engine.protocol.RunningJob.stop`."""
        self._stop_all(_ignore)

    def _stop_all(self, sink: RecordSink) -> None:
        # The leader first: it ends the ranks of all nodes, and knows then why they ended.
        self._stop([self._leader], sink)
        self._stop(self._followers, sink)

    def _stop(self, agents: Sequence[A], sink: RecordSink) -> None:
        for agent in agents:
            agent.hang_up()
            if agent is not self._leader:
                agent.resume()
        deadline = self._now() + STOP_GRACE
        # An agent whose last records nobody reads would wait for room until it is killed.
        self._read_until(lambda: all(agent.has_ended for agent in agents), lambda: deadline, sink)
        for agent in agents:
            agent.end(deadline + self._held_up)

    def close(self) -> None:
        """Let go of what this object itself holds."""
        os.close(self._bell)

    def _read_until(self, is_over: Callable[[], bool], deadline: Callable[[], float], sink: RecordSink) -> bool:
        """Read records until something is the case; False when the deadline, which may change, came first."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._bell, selectors.EVENT_READ)
            for agent in self._agents:
                if not agent.has_ended:
                    _register(selector, agent)
            looked = time.monotonic()
            while not is_over() and (remaining := deadline() - self._now()) > 0:
                found = selector.select(min(remaining, _LOOK_AGAIN))
                looked, before = time.monotonic(), looked
                if looked - before > _LOOK_AGAIN + _LATE:
                    # Somebody has stopped this process: agents went on, and what they said meanwhile waits to be read.
                    self._held_up += looked - before
                if any(key.fd == self._bell for key, _ in found):
                    os.eventfd_read(self._bell)
                for node, agent, ready in _by_agent(found, self._agents):
                    for said in agent.hear(ready):
                        self._have_met = self._have_met or (node == 0 and isinstance(said, NodesMet))
                        sink(node, said)
                    if agent.has_ended:
                        for descriptor in agent.descriptors:
                            selector.unregister(descriptor)
        return is_over()


def _register(selector: selectors.BaseSelector, agent: Agent) -> None:
    for descriptor in agent.descriptors:
        selector.register(descriptor, selectors.EVENT_READ, agent)


def _by_agent(
    found: Iterable[tuple[selectors.SelectorKey, int]], agents: Sequence[A]
) -> Iterable[tuple[int, A, set[int]]]:
    """The agents that have something to report, by node, each with its readable descriptors."""
    for node, agent in enumerate(agents):
        ready = {key.fd for key, _ in found if key.data is agent}
        if ready:
            yield node, agent, ready


def _ignore(_node: int, _said: Record | Damage) -> None:
    """Drop a record of a job that is stopped: whoever wanted its records has not waited for them."""

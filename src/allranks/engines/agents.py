"""The agents of a running job, one for each node, and the results that they leave.

A run handles all agents alike, whether an engine runs them as processes or as containers.
"""

import errno
import os
import secrets
import selectors
import socket
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO, Generic, Protocol, TypeVar

from allranks.agent.rendezvous import hold_port
from allranks.engines.agent_output import Damage
from allranks.engines.base import JobExit, JobSpec, NodeExit, Passthrough, Placement, RecordSink
from allranks.engines.intake import MOST_ENTRIES, Intake
from allranks.protocol.config import PYTEST_CACHE, RESULTS_BYTES, AgentConfig, GpuToCheck, NodeConfig, share_of
from allranks.protocol.records import NodesMet, Record

_TOKEN_BYTES = 32

_PIECE = 1 << 20


@dataclass(frozen=True, eq=False)
class Meeting:
    """The rendezvous of the agents of one job on this host, and their shared secret."""

    held: socket.socket  # the port, reserved as long as this is open: bound with SO_REUSEADDR, and not listening
    token: str

    def config_of(self, agent: AgentConfig, node: int) -> AgentConfig:
        """The configuration of one node's agent."""
        address, port = self.held.getsockname()
        post = NodeConfig(node=node, leader=address, port=port, token=self.token)
        # On one host the leading agent sees the GPUs of all.
        return replace(agent, node_config=post, check_gpus=() if node else agent.check_gpus)

    def close(self) -> None:
        """Release the port."""
        self.held.close()


def arrange_meeting() -> Meeting:
    """A port of the loopback interface, and a new token."""
    return Meeting(hold_port(host="127.0.0.1"), make_token())


def make_token() -> str:
    """A new, unique token for one job."""
    return secrets.token_hex(_TOKEN_BYTES)


def spec_of_node(spec: JobSpec, agent: AgentConfig) -> JobSpec:
    """The part of a job on several nodes for the node of this agent."""
    node, nodes = agent.node, agent.nodes
    gpus = gpus_of(node, spec.gpus, nodes)
    return replace(
        spec,
        agent=replace(agent, check_gpus=_checked_on(gpus, agent.check_gpus)),
        gpus=gpus,
        passthrough=_passthrough_of(node, spec.passthrough, nodes),
        resources=spec.resources_on(node),
    )


def _checked_on(gpus: Sequence[str], checks: Iterable[GpuToCheck]) -> tuple[GpuToCheck, ...]:
    """The checks of a node's own GPUs: an agent would report others as sick. Numbers count among its own."""
    own = [each for each in checks if each.gpu in gpus]
    return tuple(replace(each, visible=str(gpus.index(each.gpu))) if each.visible.isdecimal() else each for each in own)


def _passthrough_of(node: int, passthrough: Passthrough, nodes: int) -> Passthrough:
    """How one node is given its GPUs: AMD's have a device node each, after the one that all of them need."""
    shared, own = passthrough.nodes[:1], gpus_of(node, passthrough.nodes[1:], nodes)
    numbers = tuple(passthrough.numbers[place] for place in share_of(node, total=len(passthrough.numbers), nodes=nodes))
    return replace(passthrough, nodes=(*shared, *own), numbers=numbers)


def gpus_of(node: int, gpus: Sequence[str], nodes: int) -> tuple[str, ...]:
    """The GPUs of one node, among those that a job holds on this host."""
    return tuple(gpus[place] for place in share_of(node, total=len(gpus), nodes=nodes))


def bring_home(folders: Sequence[Path], results: Path, each: int = RESULTS_BYTES) -> None:
    """Put the results of all nodes into one folder: only regular files, without following links.

    Ranks are numbered over all nodes, so their files have unique names; an agent's files get its node's number. The
    leader's folder comes first; each may have this many bytes, or more if others have less.

    Raises:
        OSError: Something cannot be copied; everything else has been.
        EngineError: Something was left out; all that fits was unpacked.
    """
    intake = Intake(results, each * len(folders))
    errors: list[OSError] = []
    for node, folder in enumerate(folders):
        for path in _files(folder, intake, errors):
            try:
                _copy(path, PurePosixPath(path.relative_to(folder)), node, intake)
            except OSError as error:
                errors.append(error)
    if errors:
        raise errors[0]
    intake.check()


def _files(folder: Path, intake: Intake, errors: list[OSError]) -> Iterator[Path]:
    """The regular files below a folder, as far as the intake takes any more."""
    if folder.is_symlink() or not folder.is_dir():
        errors.append(FileNotFoundError(errno.ENOENT, "there is no folder", str(folder)))
        return
    waiting = [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                found = sorted(islice(entries, MOST_ENTRIES + 1), key=lambda entry: entry.name)
        except OSError as error:
            errors.append(error)
            continue
        for entry in found:
            intake.count_entry()
            path = Path(entry.path)
            if entry.is_file(follow_symlinks=False):
                yield path
            elif entry.is_dir(follow_symlinks=False) and intake.takes_folder(PurePosixPath(path.relative_to(folder))):
                waiting.append(path)


def _copy(source: Path, relative: PurePosixPath, node: int, intake: Intake) -> None:
    if node and relative.parts[0] == PYTEST_CACHE:  # the leader's has it all
        return
    name = name_of(relative, node) if node else relative
    try:
        # Since it was listed, it may have become a link, or a pipe that would block.
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        intake.leave_out("unreadable", name, 0)
        return
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode):
            intake.add_file(name, found.st_size, _pieces(file, found.st_size))


def _pieces(file: IO[bytes], size: int) -> Iterator[bytes]:
    """The first `size` bytes of a file: it may grow while it is read."""
    while size > 0 and (piece := file.read(min(size, _PIECE))):
        size -= len(piece)
        yield piece


def name_of(path: PurePosixPath, node: int) -> PurePosixPath:
    """The name of a follower's result file among those of the leader."""
    if path.stem.endswith("agent") and len(path.parts) == 1:
        return path.with_name(f"{path.stem}-{node}{path.suffix}")
    return path


STOP_GRACE = 8.0
"""Seconds for an agent to stop its ranks (three seconds at the most) and to write its results."""

_LOOK_AGAIN = 1.0
_LATE = 4.0
"""Seconds that a poll is never late by, unless this process was stopped: writing records takes less."""


class Agent(Protocol):
    """The agent of one node."""

    has_ended: bool  # it will report nothing more

    @property
    def descriptors(self) -> Collection[int]:
        """One of these is readable when :meth:`hear` has data to read."""

    def hear(self, ready: Collection[int]) -> Iterable[Record | Damage | Placement]:
        """Read the records that have arrived at its readable descriptors; set `has_ended` at its end."""

    def go(self) -> None:
        """Give it its turn; do nothing if it has ended already."""

    def hang_up(self) -> None:
        """Ask it to end its ranks and itself; idempotent."""

    def resume(self) -> None:
        """Continue it if it was stopped from outside: it has to end its ranks."""

    def end(self, deadline: float) -> None:
        """Wait for its end, and kill it at the deadline (monotonic). Idempotent."""

    def exit(self) -> NodeExit:
        """How it has ended.

        Raises:
            EngineError: The engine has lost it.
        """


A = TypeVar("A", bound=Agent)


class JobOfAgents(Generic[A]):
    """The handling of agents, the leading one first, that the jobs of all engines share; `limit` is in seconds."""

    def __init__(self, agents: Sequence[A], limit: float) -> None:
        self._leader, *self._followers = agents
        self._agents = agents
        self._limit = limit
        self._held_up = 0.0
        self._deadline = self._now() + limit
        self._have_met = False
        self._bell = os.eventfd(0)

    def go(self) -> None:
        self._deadline = self._now() + self._limit
        self._leader.go()

    def _now(self) -> float:
        """Seconds on a clock that pauses while this process is stopped, or its machine sleeps."""
        return time.monotonic() - self._held_up

    def hang_up(self) -> None:
        self._deadline = min(self._deadline, self._now() + STOP_GRACE)
        self._leader.hang_up()
        os.eventfd_write(self._bell, 1)  # the reading thread has a new deadline

    def wait(self, sink: RecordSink) -> JobExit:
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
        """True if the leader has ended, or waits for an agent that ended before the two connected."""
        return self._leader.has_ended or (
            not self._have_met and any(follower.has_ended for follower in self._followers)
        )

    def stop(self) -> None:
        self._stop_all(_ignore)

    def _stop_all(self, sink: RecordSink) -> None:
        # The leader first: it ends the ranks of all nodes, and then can report why they ended.
        self._stop([self._leader], sink)
        self._stop(self._followers, sink)

    def _stop(self, agents: Sequence[A], sink: RecordSink) -> None:
        for agent in agents:
            agent.hang_up()
            if agent is not self._leader:
                agent.resume()
        deadline = self._now() + STOP_GRACE
        # An agent whose last records are not read would block on its full pipe until it is killed.
        self._read_until(lambda: all(agent.has_ended for agent in agents), lambda: deadline, sink)
        for agent in agents:
            agent.end(deadline + self._held_up)

    def close(self) -> None:
        """Release the resources of this object."""
        os.close(self._bell)

    def _read_until(self, is_over: Callable[[], bool], deadline: Callable[[], float], sink: RecordSink) -> bool:
        """Read records until `is_over`; False if the deadline, which may change, came first."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._bell, selectors.EVENT_READ)
            for agent in self._agents:
                for descriptor in () if agent.has_ended else agent.descriptors:
                    selector.register(descriptor, selectors.EVENT_READ, agent)
            looked = time.monotonic()
            while not is_over() and (remaining := deadline() - self._now()) > 0:
                found = selector.select(min(remaining, _LOOK_AGAIN))
                looked, before = time.monotonic(), looked
                if looked - before > _LOOK_AGAIN + _LATE:
                    # This process was stopped: agents went on, and their records of that time wait to be read.
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


def _by_agent(
    found: Iterable[tuple[selectors.SelectorKey, int]], agents: Sequence[A]
) -> Iterable[tuple[int, A, set[int]]]:
    """The agents that have something to report, by node, each with its readable descriptors."""
    for node, agent in enumerate(agents):
        ready = {key.fd for key, _ in found if key.data is agent}
        if ready:
            yield node, agent, ready


def _ignore(_node: int, _said: Record | Damage | Placement) -> None:
    """Drop a record of a job that is stopped: its caller no longer waits for records."""

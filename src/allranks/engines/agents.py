"""The agents of a running job, one per node, and the collection of their result files.

An agent runs as a process, in a container or in a job of a cluster. This module has what these have in common.
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
from allranks.engines.result_files import MOST_ENTRIES, ResultWriter
from allranks.protocol.config import PYTEST_CACHE, RESULTS_BYTES, AgentConfig, GpuToCheck, NodeConfig, share_of
from allranks.protocol.records import NodesMet, Record

_TOKEN_BYTES = 32

_PIECE = 1 << 20


@dataclass(frozen=True, eq=False)
class Rendezvous:
    """The address and the shared secret with which the agents of one job on this host connect to each other."""

    held: socket.socket  # reserves the port while it is open: bound with SO_REUSEADDR, but not listening
    token: str

    def agent_config(self, agent: AgentConfig, node: int) -> AgentConfig:
        address, port = self.held.getsockname()
        node_config = NodeConfig(node=node, leader=address, port=port, token=self.token)
        # On one host, the lead agent sees, and checks, the GPUs of all nodes.
        return replace(agent, node_config=node_config, check_gpus=() if node else agent.check_gpus)

    def close(self) -> None:
        self.held.close()


def reserve_rendezvous() -> Rendezvous:
    """Reserve a port of the loopback interface, and create a new token."""
    return Rendezvous(hold_port(host="127.0.0.1"), make_token())


def make_token() -> str:
    """Create the secret token of one job."""
    return secrets.token_hex(_TOKEN_BYTES)


def spec_of_node(spec: JobSpec, agent: AgentConfig) -> JobSpec:
    """The specification of this agent's node of a job on several nodes."""
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
    """The health checks of a node's GPUs, with indexes on that node, which would report other GPUs as unhealthy."""
    own = [check for check in checks if check.gpu in gpus]
    return tuple(
        replace(check, visible=str(gpus.index(check.gpu))) if check.visible.isdecimal() else check for check in own
    )


def _passthrough_of(node: int, passthrough: Passthrough, nodes: int) -> Passthrough:
    """How one node gets its GPUs. All AMD GPUs share the first device node; the others belong to one GPU each."""
    shared, own = passthrough.nodes[:1], gpus_of(node, passthrough.nodes[1:], nodes)
    share = share_of(node, total=len(passthrough.numbers), nodes=nodes)
    return replace(passthrough, nodes=(*shared, *own), numbers=tuple(passthrough.numbers[index] for index in share))


def gpus_of(node: int, gpus: Sequence[str], nodes: int) -> tuple[str, ...]:
    """The GPUs of one node, out of those that the job holds on this host."""
    return tuple(gpus[index] for index in share_of(node, total=len(gpus), nodes=nodes))


def collect_results(folders: Sequence[Path], results: Path, bytes_per_node: int = RESULTS_BYTES) -> None:
    """Copy the regular files of all nodes into one folder, without following links.

    Ranks are numbered across nodes, so their files have unique names; the node's number is added to the names of an
    agent's files.

    Args:
        folders: The nodes' folders, the lead node's first.
        results: The target.
        bytes_per_node: The size limit, as an average over the nodes.

    Raises:
        OSError: A file could not be copied; all others were.
        EngineError: Some files were left out; all others were copied.
    """
    writer = ResultWriter(results, bytes_per_node * len(folders))
    errors: list[OSError] = []
    for node, folder in enumerate(folders):
        for path in _files(folder, writer, errors):
            try:
                _copy(path, PurePosixPath(path.relative_to(folder)), node, writer)
            except OSError as error:
                errors.append(error)
    if errors:
        raise errors[0]
    writer.check()


def _files(folder: Path, writer: ResultWriter, errors: list[OSError]) -> Iterator[Path]:
    """Yield the regular files below a folder."""
    if folder.is_symlink() or not folder.is_dir():
        errors.append(FileNotFoundError(errno.ENOENT, "not a folder", str(folder)))
        return
    pending = [folder]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                found = sorted(islice(entries, MOST_ENTRIES + 1), key=lambda entry: entry.name)
        except OSError as error:
            errors.append(error)
            continue
        for entry in found:
            writer.count_entry()
            path = Path(entry.path)
            if entry.is_file(follow_symlinks=False):
                yield path
            elif entry.is_dir(follow_symlinks=False) and writer.accepts_folder(PurePosixPath(path.relative_to(folder))):
                pending.append(path)


def _copy(source: Path, relative: PurePosixPath, node: int, writer: ResultWriter) -> None:
    if node and relative.parts[0] == PYTEST_CACHE:  # the lead node's is complete
        return
    name = result_name(relative, node) if node else relative
    try:
        # Since it was listed, it may have been replaced by a link, or by a pipe that would block.
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        writer.leave_out("unreadable", name, 0)
        return
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode):
            writer.add_file(name, found.st_size, _pieces(file, found.st_size))


def _pieces(file: IO[bytes], size: int) -> Iterator[bytes]:
    """Read the first `size` bytes of a file, which may grow meanwhile."""
    while size > 0 and (piece := file.read(min(size, _PIECE))):
        size -= len(piece)
        yield piece


def result_name(path: PurePosixPath, node: int) -> PurePosixPath:
    """The path of a follower's result file in the folder with the results of all nodes."""
    if path.stem.endswith("agent") and len(path.parts) == 1:
        return path.with_name(f"{path.stem}-{node}{path.suffix}")
    return path


STOP_GRACE = 8.0
"""Seconds for an agent to stop its ranks (which takes at most three) and to write its results."""

_POLL_SECONDS = 1.0
_SUSPENDED_SECONDS = 4.0
"""If a poll is this late, this process was suspended: writing records takes less time."""


class Agent(Protocol):
    """The agent of one node."""

    has_ended: bool  # it will report nothing more

    @property
    def descriptors(self) -> Collection[int]:
        """File descriptors to poll; one of them is readable when :meth:`read` has data."""

    def read(self, ready: Collection[int]) -> Iterable[Record | Damage | Placement]:
        """Read the records that have arrived at these descriptors; set `has_ended` at the end of the stream."""

    def go(self) -> None:
        """Let it run tests. Do nothing if it has already ended."""

    def request_stop(self) -> None:
        """Make it stop its ranks and then exit; idempotent."""

    def resume(self) -> None:
        """Continue it if it was suspended (SIGSTOP, docker pause), since it has to stop its ranks."""

    def end(self, deadline: float) -> None:
        """Wait for it to exit, and kill it at the deadline (monotonic clock). Idempotent."""

    def exit(self) -> NodeExit:
        """Return how it ended.

        Raises:
            EngineError: The engine lost it.
        """


A = TypeVar("A", bound=Agent)


class JobOfAgents(Generic[A]):
    """The implementation of a running job that all engines share.

    Args:
        agents: The agents, the lead node's first.
        limit: The job's time limit in seconds.
    """

    def __init__(self, agents: Sequence[A], limit: float) -> None:
        self._leader, *self._followers = agents
        self._agents = agents
        self._limit = limit
        self._suspended = 0.0
        self._deadline = self._now() + limit
        self._are_connected = False
        self._wakeup = os.eventfd(0)

    def go(self) -> None:
        self._deadline = self._now() + self._limit
        self._leader.go()

    def _now(self) -> float:
        """Seconds on a clock that pauses while this process is suspended or the machine sleeps."""
        return time.monotonic() - self._suspended

    def request_stop(self) -> None:
        self._deadline = min(self._deadline, self._now() + STOP_GRACE)
        self._leader.request_stop()
        os.eventfd_write(self._wakeup, 1)  # the reading thread has a new deadline

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
        """Whether the lead agent has ended, or waits for an agent that ended before it connected."""
        return self._leader.has_ended or (
            not self._are_connected and any(follower.has_ended for follower in self._followers)
        )

    def stop(self) -> None:
        self._stop_all(lambda *_: None)

    def _stop_all(self, sink: RecordSink) -> None:
        # The lead agent first: it stops the ranks of all nodes, so it can report why they ended.
        self._stop([self._leader], sink)
        self._stop(self._followers, sink)

    def _stop(self, agents: Sequence[A], sink: RecordSink) -> None:
        for agent in agents:
            agent.request_stop()
            if agent is not self._leader:
                agent.resume()
        deadline = self._now() + STOP_GRACE
        # Agents block on a full pipe, so their last records must be read.
        self._read_until(lambda: all(agent.has_ended for agent in agents), lambda: deadline, sink)
        for agent in agents:
            agent.end(deadline + self._suspended)

    def close(self) -> None:
        os.close(self._wakeup)

    def _read_until(self, is_over: Callable[[], bool], deadline: Callable[[], float], sink: RecordSink) -> bool:
        """Read records until `is_over`; return False if the deadline, which may change, came first."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._wakeup, selectors.EVENT_READ)
            for agent in self._agents:
                for descriptor in () if agent.has_ended else agent.descriptors:
                    selector.register(descriptor, selectors.EVENT_READ, agent)
            polled = time.monotonic()
            while not is_over() and (remaining := deadline() - self._now()) > 0:
                found = selector.select(min(remaining, _POLL_SECONDS))
                polled, before = time.monotonic(), polled
                if polled - before > _POLL_SECONDS + _SUSPENDED_SECONDS:
                    # The agents continued meanwhile, and their records of that time must still be read.
                    self._suspended += polled - before
                if any(key.fd == self._wakeup for key, _ in found):
                    os.eventfd_read(self._wakeup)
                for node, agent, ready in _by_agent(found, self._agents):
                    for record in agent.read(ready):
                        self._are_connected = self._are_connected or (node == 0 and isinstance(record, NodesMet))
                        sink(node, record)
                    if agent.has_ended:
                        for descriptor in agent.descriptors:
                            selector.unregister(descriptor)
        return is_over()


def _by_agent(
    found: Iterable[tuple[selectors.SelectorKey, int]], agents: Sequence[A]
) -> Iterable[tuple[int, A, set[int]]]:
    """Yield each agent that has data to read, with the number of its node and its readable descriptors."""
    for node, agent in enumerate(agents):
        ready = {key.fd for key, _ in found if key.data is agent}
        if ready:
            yield node, agent, ready

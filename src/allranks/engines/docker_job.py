"""A running job of the docker engine, with one container per node."""

import socket
import ssl
import tarfile
import threading
import time
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import docker
import requests
from docker.errors import APIError, NotFound

from allranks.agent.linux import signal_name
from allranks.engines import agents
from allranks.engines.agent_output import STDOUT, Damage, FrameReader, RecordReader
from allranks.engines.agents import JobOfAgents, collect_results
from allranks.engines.archive import unpack
from allranks.engines.base import NodeExit
from allranks.engines.docker_requests import ROOT, own_folder
from allranks.errors import EngineError
from allranks.images.docker_client import FAILURES
from allranks.protocol.records import ContainerEnded, Record

_SIGNALLED = 128
"""The exit status of a container that was killed by a signal is the signal's number plus this."""

_NETWORK_POLL = 1.0
"""Seconds between two checks of the network while the nodes are not connected."""

_NO_ADDRESSES = "address pool"
"""Part of Docker's message when no addresses are left for a network (20.10 to 28)."""


class Container:
    """The container of one node, which runs the node's agent.

    Args:
        client: The daemon.
        identifier: The container's id.
        title: Its name in messages.
        network: The job's network; None for a job on one node.
    """

    def __init__(self, client: docker.APIClient, identifier: str, title: str, network: str | None) -> None:
        self.identifier = identifier
        self.title = title
        self.has_ended = False
        self._client = client
        self._network = network
        self._attached: Any = None
        self._stream = RecordReader()
        self._frames = FrameReader()
        self._ended: ContainerEnded | None = None
        self._exit = NodeExit(status=None)
        self._was_paused = self._was_stuck = False

    def attach_and_start(self) -> None:
        """Start the container, after attaching to it, so that no output of the agent is lost."""
        with as_engine_error(f"{self.title} could not be started."):
            self._attached = self._client.attach_socket(
                self.identifier, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
            )
            self._client.start(self.identifier)

    @property
    def _socket(self) -> socket.socket:
        """The socket; for some transports the SDK returns a file that wraps it."""
        wrapped: socket.socket = getattr(self._attached, "_sock", self._attached)
        return wrapped

    @property
    def descriptors(self) -> tuple[int, ...]:
        return (self._socket.fileno(),)

    def read(self, _ready: Collection[int]) -> Iterator[Record | Damage]:
        """Read available output. The agent has ended if its container init reports that, or if the stream ends."""
        data = self._receive()
        for stream, payload in self._frames.feed(data):
            if stream != STDOUT:
                self._stream.add_output(payload)
                continue
            for record in self._stream.feed(payload):
                if isinstance(record, ContainerEnded):
                    self._ended = record
                else:
                    yield record
        self.has_ended = not data or self.keeps_files

    def _receive(self) -> bytes:
        """Receive data. A lost connection ends the stream, too; then the container's state is inspected."""
        try:
            return self._socket.recv(1 << 16)
        except OSError:
            return b""

    @property
    def keeps_files(self) -> bool:
        """Whether the container init still runs after the end of the agent, to keep the job's files."""
        return self._ended is not None

    def begin(self) -> None:
        """Let the agent start, after its files were copied."""
        self._send(b"begin\n")

    def go(self) -> None:
        self._send(b"go\n")

    def _send(self, line: bytes) -> None:
        with suppress(OSError):  # the container has ended; `exit` reports how
            self._socket.sendall(line)

    def request_stop(self) -> None:
        # If its input ended now, the container init would exit after a minute, even before its files are copied.
        if self.keeps_files:
            return
        if isinstance(self._socket, ssl.SSLSocket):
            # TLS connections cannot be half-closed: the agent's output would end, too. In a thread, since the caller
            # must not wait for a daemon.
            threading.Thread(target=self._terminate, daemon=True).start()
        else:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)

    def _terminate(self) -> None:
        with suppress(*FAILURES):
            self._client.kill(self.identifier, signal="SIGTERM")

    def resume(self) -> None:
        if not self.has_ended and self._state_now().get("Paused"):
            self._was_paused = True
            with suppress(*FAILURES):
                self._client.unpause(self.identifier)

    def _state_now(self) -> dict[str, Any]:
        """The container's state; empty if the daemon does not answer."""
        with suppress(*FAILURES):
            state: dict[str, Any] = self._client.inspect_container(self.identifier)["State"]
            return state
        return {}

    def end(self, _deadline: float) -> None:
        """Kill it: the job has already waited until the deadline."""
        if self.has_ended:
            return
        self.has_ended = True
        state = self._state_now()
        self._was_paused = self._was_paused or bool(state.get("Paused"))
        self._was_stuck = bool(state.get("Running"))
        # Docker 20.10 neither kills nor removes a container with unread output: it did not answer within a minute,
        # but in 0.3 s after the connection was shut down.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        # A failure is harmless: the container is removed at the end of the job, or by a later clean-up.
        with suppress(*FAILURES):
            self._client.kill(self.identifier)

    def exit(self) -> NodeExit:
        """How the agent ended, as reported by its container init, or else by the daemon."""
        if self._network is not None and not self._is_in(self._network):
            msg = f"{self.title} was disconnected from the job's network."
            raise EngineError(msg, remedy="Do not change the networks of running jobs.")
        if self._ended is None:
            state = self._final_state()
            output = self._stream.output or state["Error"]
            memory = bool(state["OOMKilled"])
            self._exit = NodeExit(status=state["ExitCode"], out_of_memory=memory, output=output)
        else:
            memory = self._ended.memory_kills > 0
            output = f"It had been paused. {self._stream.output}".rstrip() if self._was_paused else self._stream.output
            self._exit = NodeExit(status=self._ended.status, out_of_memory=memory, output=output)
        return self._exit

    @property
    def is_disconnected(self) -> bool:
        """Whether the daemon reports that the container is no longer in the job's network."""
        with suppress(EngineError):
            return self._network is not None and not self._is_in(self._network)
        return False

    def _is_in(self, network: str) -> bool:
        return network in self._inspect()["NetworkSettings"]["Networks"]

    def _final_state(self) -> dict[str, Any]:
        with as_engine_error(f"{self.title} is lost."), suppress(NotFound):  # see `_inspect`
            self._client.wait(self.identifier, timeout=int(agents.STOP_GRACE))
        state: dict[str, Any] = self._inspect()["State"]
        return state

    def _inspect(self) -> dict[str, Any]:
        with as_engine_error(f"{self.title} is lost."):
            try:
                found: dict[str, Any] = self._client.inspect_container(self.identifier)
                if found["State"].get("Status") == "removing":
                    # `docker rm -f` has killed it and is about to remove it.
                    with suppress(*FAILURES):
                        self._client.wait(self.identifier, timeout=int(agents.STOP_GRACE), condition="removed")
                    found = self._client.inspect_container(self.identifier)
            except NotFound as error:
                msg = f"{self.title} was removed while the job ran."
                raise EngineError(msg, why=reason_of(error), remedy="Run the rest with --resume.") from error
        return found

    def early_end(self, *, are_files_lost: bool = False) -> EngineError:
        """The error of a job whose container ended before its agent did."""
        what, why = self._cause()
        return EngineError(
            f"{self.title} {what}{', and its files are lost' if are_files_lost else ''}.",
            why=" ".join(filter(None, (why, self._exit.output))),
            remedy="See `docker events` and the daemon's log. The report includes the results up to that point.",
        )

    def _cause(self) -> tuple[str, str]:
        """Why the container ended before its agent did, and details."""
        status = self._exit.status
        if self._exit.out_of_memory:
            return (
                "was killed by the kernel's out-of-memory killer",
                "Its processes share limits.memory_mib of the matrix file.",
            )
        if self._was_paused:
            return "was paused (docker pause) until its time limit", "Nothing in it could run, so allranks killed it."
        if self._was_stuck:
            return "did not stop on request", f"allranks killed it after {agents.STOP_GRACE:g} s."
        if status is None:
            return "ended unexpectedly", "Its exit status is unknown."
        if status > _SIGNALLED:
            return (
                f"was killed ({signal_name(status - _SIGNALLED)})",
                "Another program killed or stopped it (docker kill, docker stop), or its daemon ended.",
            )
        return "ended unexpectedly", f"Its exit status is {status}."

    def close(self) -> None:
        if self._attached is None:
            return
        connection = self._socket
        response = getattr(self._attached, "_response", None)
        if response is not None:
            # Otherwise, its finalizer prints an error about a closed file (Python 3.13).
            response.close()
        self._attached.close()
        connection.close()


class DockerJob(JobOfAgents[Container]):
    """A job whose agents run in containers, and share a volume that exists while one of the containers runs."""

    def __init__(self, client: docker.APIClient, containers: Sequence[Container], limit: float) -> None:
        super().__init__(containers, limit)
        self._client = client
        self._is_disconnected = False
        self._checked = time.monotonic()

    def start(self, archive: Iterable[bytes]) -> None:
        """Start the containers, copy the files into their volume, and start the agents."""
        for container in self._agents:
            container.attach_and_start()
        with as_engine_error(f"{self._leader.title} could not be started."):
            self._client.put_archive(self._leader.identifier, ROOT, archive)
        for container in self._agents:
            container.begin()

    def _is_over(self) -> bool:
        """True also if a container lost the network before the nodes connected: they would wait for a time limit."""
        if self._followers and not self._are_connected and time.monotonic() - self._checked > _NETWORK_POLL:
            self._is_disconnected = self._is_disconnected or any(agent.is_disconnected for agent in self._agents)
            self._checked = time.monotonic()
        return self._is_disconnected or super()._is_over()

    def collect(self, results: Path) -> None:
        gone = [container for container in self._agents if not container.keeps_files]
        if len(gone) == len(self._agents):
            raise gone[0].early_end(are_files_lost=True)
        incomplete: EngineError | None = None
        try:
            self._copy_results(results)
        except EngineError as error:
            incomplete = error
        except (*FAILURES, tarfile.TarError) as error:
            msg = f"The results of a job could not be copied to {results}."
            raise EngineError(
                msg,
                why=reason_of(error),
                remedy="Check the daemon, and the folder's permissions and free space.",
            ) from error
        if gone:
            raise gone[0].early_end()
        if incomplete:
            raise incomplete

    def _copy_results(self, results: Path) -> None:
        if not self._followers:
            with closing(self._archive_of(0)) as pieces:
                unpack(pieces, results)
            return
        # Not in TMPDIR, where it would remain if this process is killed.
        with TemporaryDirectory(prefix=".nodes-", dir=results) as scratch:
            folders = [Path(scratch, f"node-{node}") for node, _ in enumerate(self._agents)]
            errors = [error for node, folder in enumerate(folders) if (error := self._unpack(node, folder))]
            collect_results(folders, results)
        if errors:
            raise errors[0]

    def _unpack(self, node: int, folder: Path) -> EngineError | tarfile.TarError | None:
        """Copy a node's results. Return an error, so that the results of all nodes are copied before it is raised."""
        try:
            with closing(self._archive_of(node)) as pieces:
                unpack(pieces, folder)
        except NotFound:  # `collect_results` reports the missing folder
            return None
        except (EngineError, tarfile.TarError) as error:
            return error
        return None

    def _archive_of(self, node: int) -> Generator[bytes, None, None]:
        """The results of a node, from its own container or, if that has ended, from another node's.

        Closing the generator closes its connection, so that the daemon stops sending.
        """
        path = f"{own_folder(node)}/results"
        own = self._agents[node]
        *containers, last = sorted(
            (container for container in self._agents if container.keeps_files),
            key=lambda container: container is not own,
        )
        for container in containers:
            with suppress(NotFound):
                return self._read(container, path)
        return self._read(last, path)

    def _read(self, container: Container, path: str) -> Generator[bytes, None, None]:
        pieces: Generator[bytes, None, None]
        pieces, _ = self._client.get_archive(container.identifier, path)
        return pieces

    def close(self) -> None:
        for container in self._agents:
            container.close()
        super().close()


@contextmanager
def as_engine_error(what: str) -> Iterator[None]:
    """Convert failures of the daemon into an :class:`EngineError`."""
    try:
        yield
    except FAILURES as error:
        why = reason_of(error)
        raise EngineError(what, why=why, remedy=_remedy(why)) from error


def reason_of(error: BaseException) -> str:
    """The message of an error. For a lost connection, the text of requests' exception would be a Python tuple."""
    if isinstance(error, APIError) and error.explanation:
        return str(error.explanation)
    below: BaseException | None = error if isinstance(error, requests.RequestException) else None
    while below is not None:
        if isinstance(below, OSError) and below.strerror:
            return f"The daemon does not answer: {below.strerror}."
        below = below.__cause__ or below.__context__
    return str(error)


def _remedy(why: str) -> str:
    if _NO_ADDRESSES in why:
        return (
            "Each job on several nodes has a network, and a daemon has addresses for about thirty. Remove unused "
            "networks (docker network prune), or add addresses (default-address-pools in daemon.json)."
        )
    return "See the daemon's log; `allranks clean` removes leftovers."

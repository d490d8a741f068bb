"""A running job of the docker engine: one container for each node, removed in every case."""

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
"""If a signal ended a container, its exit status is this plus the signal's number."""

_LOOK_AGAIN = 1.0
"""Seconds between two looks at the network of nodes that have not met."""

_NO_ADDRESSES = "address pool"
"""Part of Docker's message when it has no addresses left for a network, in 20.10 as well as 28."""


class Container:
    """The container of one node, whose program is the node's agent.

    Its title is its name in messages; a job on one node has no network.
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
        """Attach first, so that no output of the agent is lost, then start."""
        with as_engine_error(f"{self.title} could not be started."):
            self._attached = self._client.attach_socket(
                self.identifier, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
            )
            self._client.start(self.identifier)

    @property
    def _socket(self) -> socket.socket:
        """The socket itself: for some transports the SDK returns a file around it."""
        wrapped: socket.socket = getattr(self._attached, "_sock", self._attached)
        return wrapped

    @property
    def descriptors(self) -> tuple[int, ...]:
        return (self._socket.fileno(),)

    def read(self, _ready: Collection[int]) -> Iterator[Record | Damage]:
        """Read what has arrived; the end of the attach stream is the container's end."""
        data = self._receive()
        for stream, payload in self._frames.feed(data):
            if stream != STDOUT:
                self._stream.add_output(payload)
                continue
            for said in self._stream.feed(payload):
                if isinstance(said, ContainerEnded):
                    self._ended = said
                else:
                    yield said
        self.has_ended = not data or self.keeps_files

    def _receive(self) -> bytes:
        """Data from the daemon; nothing if the connection is lost, since the daemon is asked about the end anyway."""
        try:
            return self._socket.recv(1 << 16)
        except OSError:
            return b""

    @property
    def keeps_files(self) -> bool:
        """True if its agent has ended and its container init still runs, which keeps the files of the job."""
        return self._ended is not None

    def begin(self) -> None:
        """Let the agent start, after its files were copied."""
        self._say(b"begin\n")

    def go(self) -> None:
        self._say(b"go\n")

    def _say(self, line: bytes) -> None:
        try:
            self._socket.sendall(line)
        except OSError:
            # The container has ended already; `exit` reports how.
            return

    def request_stop(self) -> None:
        # A container init whose input has ended stays for a minute, any other until its files have been fetched.
        if self.keeps_files:
            return
        if isinstance(self._socket, ssl.SSLSocket):
            # TLS cannot close one half of a connection: the agent's output would end, too. A thread, since the caller
            # has no time to wait for a daemon.
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
        """The daemon's state of it; empty if the daemon does not answer."""
        with suppress(*FAILURES):
            state: dict[str, Any] = self._client.inspect_container(self.identifier)["State"]
            return state
        return {}

    def end(self, _deadline: float) -> None:
        """Kill it: its job has read from it until the deadline."""
        if self.has_ended:
            return
        self.has_ended = True
        state = self._state_now()
        self._was_paused = self._was_paused or bool(state.get("Paused"))
        self._was_stuck = bool(state.get("Running"))
        # While a container's output is unread, the daemon neither kills nor removes it (Docker 20.10: no answer
        # within a minute; 0.3 s once the connection is shut down).
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        # If it no longer runs, or the daemon is gone, removal, now or by a later clean-up, does the rest.
        with suppress(*FAILURES):
            self._client.kill(self.identifier)

    def exit(self) -> NodeExit:
        """How it has ended, by its container init or, without a word from that, by the daemon."""
        if self._network is not None:
            self._see_that_it_is_in(self._network)
        if self._ended is None:
            state = self._state_of_the_dead()
            output = self._stream.output or state["Error"]
            memory = bool(state["OOMKilled"])
            self._exit = NodeExit(status=state["ExitCode"], out_of_memory=memory, output=output)
        else:
            memory = self._ended.memory_kills > 0
            output = f"It had been paused. {self._stream.output}".rstrip() if self._was_paused else self._stream.output
            self._exit = NodeExit(status=self._ended.status, out_of_memory=memory, output=output)
        return self._exit

    @property
    def is_cut_off(self) -> bool:
        """Whether the daemon knows that it is no longer in its job's network."""
        with suppress(EngineError):
            return self._network is not None and not self._is_in(self._network)
        return False

    def _is_in(self, network: str) -> bool:
        return network in self._inspect()["NetworkSettings"]["Networks"]

    def _see_that_it_is_in(self, network: str) -> None:
        if not self._is_in(network):
            msg = f"{self.title} was taken out of the job's network."
            raise EngineError(msg, remedy="Leave the networks of running jobs alone.")

    def _state_of_the_dead(self) -> dict[str, Any]:
        with as_engine_error(f"{self.title} is lost."), suppress(NotFound):  # see `_inspect`
            self._client.wait(self.identifier, timeout=int(agents.STOP_GRACE))
        state: dict[str, Any] = self._inspect()["State"]
        return state

    def _inspect(self) -> dict[str, Any]:
        with as_engine_error(f"{self.title} is lost."):
            try:
                found: dict[str, Any] = self._client.inspect_container(self.identifier)
                if found["State"].get("Status") == "removing":
                    # `docker rm -f` has killed it, and will be done with it at any moment.
                    with suppress(*FAILURES):
                        self._client.wait(self.identifier, timeout=int(agents.STOP_GRACE), condition="removed")
                    found = self._client.inspect_container(self.identifier)
            except NotFound as error:
                msg = f"{self.title} is gone: it was removed while the job ran."
                raise EngineError(msg, why=reason_of(error), remedy="Run the rest with --resume.") from error
        return found

    def early_end(self, consequence: str) -> EngineError:
        """The error of a job whose container, this one, ended before its agent did, with the consequence in words."""
        what, why = self._cause()
        return EngineError(
            f"{self.title} {what}{consequence}.",
            why=" ".join(filter(None, (why, self._exit.output))),
            remedy="See `docker events` and the daemon's log. The report has what its tests had reported.",
        )

    def _cause(self) -> tuple[str, str]:
        """What ended it before its agent did, and further details."""
        how = self._exit
        if how.out_of_memory:
            return (
                "was killed by the kernel's out-of-memory killer",
                "Its processes share limits.memory_mib of the matrix file.",
            )
        if self._was_paused:
            return "was paused (docker pause) until its time was up", "Nothing in it could run, so allranks killed it."
        if self._was_stuck:
            return "did not end on request", f"It had {agents.STOP_GRACE:g} s; then allranks killed it."
        if how.status is None:
            return "ended before its agent did", "Its exit status is unknown."
        if how.status > _SIGNALLED:
            name = signal_name(how.status - _SIGNALLED)
            return (
                f"was killed ({name})",
                "It was killed or stopped from outside (docker kill, docker stop), or its daemon ended.",
            )
        return "ended before its agent did", f"Its exit status is {how.status}."

    def close(self) -> None:
        """Close the connection."""
        if self._attached is None:
            return
        connection = self._socket
        response = getattr(self._attached, "_response", None)
        if response is not None:
            # The garbage collector would find its file closed, and print an error on standard error (Python 3.13).
            response.close()
        self._attached.close()
        connection.close()


class DockerJob(JobOfAgents[Container]):
    """Agents in containers; the files of all are in one volume, which exists while one of the containers runs.

    The leading container comes first; `limit` is in seconds.
    """

    def __init__(self, client: docker.APIClient, containers: Sequence[Container], limit: float) -> None:
        super().__init__(containers, limit)
        self._client = client
        self._is_apart = False
        self._looked = time.monotonic()

    def start(self, archive: Iterable[bytes]) -> None:
        """Start the containers, give them their files, and let the agents begin."""
        for container in self._agents:
            container.attach_and_start()
        # The volume is in memory, and exists only while a container runs.
        with as_engine_error(f"{self._leader.title} could not be started."):
            self._client.put_archive(self._leader.identifier, ROOT, archive)
        for container in self._agents:
            container.begin()

    def _is_over(self) -> bool:
        """True also if the nodes' network is removed before they met: they would wait until their time is up."""
        if self._followers and not self._are_connected and time.monotonic() - self._looked > _LOOK_AGAIN:
            self._is_apart = self._is_apart or any(container.is_cut_off for container in self._agents)
            self._looked = time.monotonic()
        return self._is_apart or super()._is_over()

    def collect(self, results: Path) -> None:
        gone = [container for container in self._agents if not container.keeps_files]
        if len(gone) == len(self._agents):
            early = gone[0].early_end(", and its files are lost")
            raise early
        left_out: EngineError | None = None
        try:
            self._bring_home(results)
        except EngineError as error:
            left_out = error
        except (*FAILURES, tarfile.TarError) as error:
            msg = f"The results of a job could not be copied to {results}."
            raise EngineError(
                msg, why=reason_of(error), remedy="Check the daemon, and space and permissions here."
            ) from error
        if gone:
            early = gone[0].early_end("")
            raise early
        if left_out:
            raise left_out

    def _bring_home(self, results: Path) -> None:
        if not self._followers:
            with closing(self._archive_of(0)) as pieces:
                unpack(pieces, results)
            return
        # Not among temporary files, where it would outlive an orchestrator that is killed.
        with TemporaryDirectory(prefix=".nodes-", dir=results) as scratch:
            folders = [Path(scratch, f"node-{node}") for node, _ in enumerate(self._agents)]
            errors = [error for node, folder in enumerate(folders) if (error := self._unpack(node, folder))]
            collect_results(folders, results)
        if errors:
            raise errors[0]

    def _unpack(self, node: int, folder: Path) -> EngineError | tarfile.TarError | None:
        """Copy a node's results; return the error, to be raised after those of all nodes are copied."""
        try:
            with closing(self._archive_of(node)) as pieces:
                unpack(pieces, folder)
        except NotFound:  # `collect_results` misses the folder
            return None
        except (EngineError, tarfile.TarError) as error:
            return error
        return None

    def _archive_of(self, node: int) -> Generator[bytes, None, None]:
        """The results of a node, from its own container or, if that has ended, from another one.

        Closing it early closes its connection, so that the daemon stops sending.
        """
        path = f"{own_folder(node)}/results"
        own = self._agents[node]
        *containers, last = sorted(
            (container for container in self._agents if container.keeps_files), key=lambda each: each is not own
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
        """Close the connections."""
        for container in self._agents:
            container.close()
        super().close()


@contextmanager
def as_engine_error(what: str) -> Iterator[None]:
    """Turn the daemon's failures in this block into an :class:`EngineError` with this first sentence."""
    try:
        yield
    except FAILURES as error:
        why = reason_of(error)
        raise EngineError(what, why=why, remedy=_remedy(why)) from error


def reason_of(error: BaseException) -> str:
    """The message of an error; that of requests for a daemon that is gone is a Python tuple, not a sentence."""
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
            "Each job on several nodes has a network, and a daemon has addresses for about thirty. Remove unused ones "
            "(docker network prune), or give it more (default-address-pools in its daemon.json)."
        )
    return "See the daemon's log; `allranks clean` removes leftovers."

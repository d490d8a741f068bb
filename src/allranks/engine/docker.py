"""The docker engine: a job is a container that shares nothing with this host but its results.

Docker SDK for Python, API 1.41 (Docker 20.10) or newer. Code goes in and results come out as archives through
the API, so a remote daemon, a rootless one and one whose user differs from ours all work alike.
"""

import os
import re
import selectors
import socket
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import requests
from docker.errors import APIError, DockerException, NotFound
from docker.types import DeviceRequest, DriverConfig, Mount
from docker.utils import kwargs_from_env, parse_host

from allranks.engine.archive import PAGE, Archive, ArchiveBuilder, unpack
from allranks.engine.frames import STDOUT, FrameReader
from allranks.engine.ownership import (
    HOST_LABEL,
    RUN_LABEL,
    RUN_VARIABLE,
    forget_dead_runs,
    host_id,
    is_dead,
)
from allranks.engine.protocol import EventSink, JobExit
from allranks.engine.spec import FileCopy, JobSpec
from allranks.engine.stream import EventStream
from allranks.errors import EngineError
from allranks.harness.events import Event
from allranks.harness.keeper import AGENT_ENDED
from allranks.interruption import uninterrupted

USER = 10001
"""User and group of every job: a number that no distribution gives to anybody."""

STOP_GRACE = 8
"""Seconds for an agent to stop its ranks (three seconds at the most) and to write its results."""

RESULTS_BYTES = 512 << 20
"""What a job may write down: each rank's log has a limit of its own."""

_FAILURES = (DockerException, requests.RequestException, OSError)
_ROOT = "/job"
_NODE = "node0"
_LOCAL = "http+unix://"


def connect(*, timeout: int = 60) -> docker.DockerClient:
    """A client of the daemon that the environment names (``DOCKER_HOST``), or the local one.

    Raises:
        EngineError: No daemon answers.
    """
    try:
        settings = kwargs_from_env()
        _knock(str(parse_host(settings.get("base_url"))), timeout)
        client = docker.DockerClient(version="auto", timeout=timeout, **settings)
    except _FAILURES as error:
        if isinstance(error, PermissionError):
            msg, remedy = "You may not use Docker.", "Join the group docker"
        else:
            msg, remedy = "No Docker daemon answers.", "Start one (scripts/docker-engine does on Debian)"
        raise EngineError(msg, why=str(error), remedy=f"{remedy}, or use --engine process.") from error
    return client


def _knock(address: str, timeout: float) -> None:
    """See that somebody listens at a local address: the SDK forgets to close a socket that it cannot connect."""
    if not address.startswith(_LOCAL):
        return
    path = address.removeprefix(_LOCAL)
    with socket.socket(socket.AF_UNIX) as door:
        door.settimeout(timeout)
        try:
            door.connect(path)
        except OSError as error:
            raise OSError(error.errno, error.strerror or str(error), path) from error


class DockerEngine:
    """Runs agents in containers.

    Args:
        client: A connected client.
        package: What the agent needs of allranks itself, with targets relative to a folder on its path.
    """

    name = "docker"
    spans_nodes = False

    def __init__(self, client: docker.DockerClient, package: tuple[FileCopy, ...]) -> None:
        self._client = client.api
        self._package = package

    @contextmanager
    def start(self, spec: JobSpec, held: Sequence[int] = ()) -> Iterator["DockerJob"]:  # noqa: ARG002
        """See :meth:`allranks.engine.protocol.Engine.start`."""
        archive = job_archive(spec, self._package)
        with ExitStack() as stack:
            with _as_engine_error(f"The container of {spec.job_id} could not be started."):
                identifier = self._create(spec, archive.pages * PAGE, stack)
                job = DockerJob(self._client, identifier, spec.resources.seconds)
                stack.callback(job.close)
                job.attach_and_start()
                # What is in memory is there while the container runs, and not before.
                self._client.put_archive(identifier, _ROOT, archive.data)
                job.begin()
            yield job

    def _create(self, spec: JobSpec, code_bytes: int, stack: ExitStack) -> str:
        """Create the container, and have `stack` remove it."""
        if spec.image is None:
            msg = f"job {spec.job_id} names no image"
            raise EngineError(msg)
        request = creation_request(spec, host_id(), code_bytes)
        host_config = self._client.create_host_config(**request.pop("host_config"))
        # The daemon would go on making what nobody then knows to remove.
        with uninterrupted():
            container = self._client.create_container(**request, name=container_name(spec), host_config=host_config)
            stack.callback(self._remove, container["Id"])
        return str(container["Id"])

    def _remove(self, identifier: str) -> None:
        try:
            self._client.remove_container(identifier, v=True, force=True)
        except NotFound:
            return
        except _FAILURES:
            # The daemon is gone or busy; the labels stay, and the next start reaps what they name.
            return

    def reap(self) -> list[str]:
        """Remove the containers of this host whose run has no owner any more, with their volumes."""
        with _as_listing_error():
            dead = self._dead_containers()
            for each in dead:
                self._remove(each["Id"])
            volumes = [name for name in self._dead_volumes() if self._remove_volume(name)]
        forget_dead_runs()
        return _names(dead, volumes)

    def remains(self) -> list[str]:
        """See :meth:`allranks.engine.protocol.Engine.remains`."""
        with _as_listing_error():
            return _names(self._dead_containers(), self._dead_volumes())

    def _dead_containers(self) -> list[dict[str, Any]]:
        containers: list[dict[str, Any]] = self._client.containers(all=True, filters=_of_this_host())
        return [each for each in containers if is_dead(each["Labels"].get(RUN_LABEL, ""))]

    def _dead_volumes(self) -> list[str]:
        volumes = self._client.volumes(filters={**_of_this_host(), "dangling": True})["Volumes"] or []
        return [each["Name"] for each in volumes if is_dead(each["Labels"].get(RUN_LABEL, ""))]

    def _remove_volume(self, name: str) -> bool:
        try:
            self._client.remove_volume(name)
        except APIError:
            # Another process reaps at the same time, or the volume is in use again.
            return False
        return True


class DockerJob:
    """An agent in a container."""

    def __init__(self, client: docker.APIClient, identifier: str, limit: float) -> None:
        self._client = client
        self._identifier = identifier
        self._limit = limit
        self._deadline = time.monotonic() + limit
        self._attached: Any = None
        self._stream = EventStream()
        self._frames = FrameReader()
        self._is_over = True
        self._ended: Event | None = None
        self._exit = JobExit(status=None)
        self._bell = os.eventfd(0)

    def attach_and_start(self) -> None:
        """Attach first, so that nothing of what the agent says is lost, then start."""
        self._attached = self._client.attach_socket(
            self._identifier, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        )
        self._client.start(self._identifier)

    @property
    def _socket(self) -> socket.socket:
        """What the SDK hands out is a file around the socket for some transports, the socket itself for others."""
        wrapped: socket.socket = getattr(self._attached, "_sock", self._attached)
        return wrapped

    def begin(self) -> None:
        """Let the agent start: its files are there now."""
        self._is_over = False
        self._say(b"begin\n")

    def go(self) -> None:
        """See :meth:`allranks.engine.protocol.RunningJob.go`."""
        self._deadline = time.monotonic() + self._limit
        self._say(b"go\n")

    def _say(self, line: bytes) -> None:
        try:
            self._socket.sendall(line)
        except OSError:
            # The container has ended already; `wait` finds out how.
            return

    def wait(self, sink: EventSink) -> JobExit:
        """See :meth:`allranks.engine.protocol.RunningJob.wait`."""
        timed_out = not self._pump(lambda: self._deadline, sink)
        if timed_out:
            self.stop()
        self._exit = replace(self._how_it_ended(), timed_out=timed_out)
        self._is_over = True
        return self._exit

    def _how_it_ended(self) -> JobExit:
        """As the keeper says; where it could not, as the daemon does."""
        if self._ended is not None:
            memory = bool(self._ended["memory_kills"])
            return JobExit(status=self._ended["status"], out_of_memory=memory, output=self._stream.output)
        with _as_engine_error("The daemon lost a job."):
            state = self._exited_state()
        output = self._stream.output or state["Error"]
        return JobExit(status=state["ExitCode"], out_of_memory=bool(state["OOMKilled"]), output=output)

    def _exited_state(self) -> dict[str, Any]:
        self._client.wait(self._identifier, timeout=STOP_GRACE)
        state: dict[str, Any] = self._client.inspect_container(self._identifier)["State"]
        return state

    def hang_up(self) -> None:
        """See :meth:`allranks.engine.protocol.RunningJob.hang_up`."""
        self._deadline = min(self._deadline, time.monotonic() + STOP_GRACE)
        self._end_stdin()
        os.eventfd_write(self._bell, 1)  # whoever reads has a new deadline

    def stop(self) -> None:
        """See :meth:`allranks.engine.protocol.RunningJob.stop`."""
        if self._is_over:
            return
        self._end_stdin()
        deadline = time.monotonic() + STOP_GRACE
        if not self._pump(lambda: deadline, lambda _event: None):
            self._kill()
        self._is_over = True

    def _end_stdin(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def _kill(self) -> None:
        try:
            self._client.kill(self._identifier)
        except _FAILURES:
            # Not running any more, or no daemon: removal, now or by a later reap, does the rest.
            return

    def collect(self, results: Path) -> None:
        """See :meth:`allranks.engine.protocol.RunningJob.collect`."""
        if self._ended is None:
            raise _gone_with_its_files(self._exit)
        try:
            pieces, _ = self._client.get_archive(self._identifier, f"{_ROOT}/results")
            unpack(pieces, results)
        except (*_FAILURES, tarfile.TarError) as error:
            msg = f"The results of a job could not be copied to {results}."
            raise EngineError(
                msg, why=str(error), remedy="Check the daemon, and space and permissions here."
            ) from error

    def close(self) -> None:
        """Stop what runs and let go of the connection."""
        self.stop()
        os.close(self._bell)
        if self._attached is not None:
            connection = self._socket
            response = getattr(self._attached, "_response", None)
            if response is not None:
                # Left to the garbage collector, it finds its file closed and says so on standard error (Python 3.13).
                response.close()
            self._attached.close()
            connection.close()

    def _pump(self, deadline: Callable[[], float], sink: EventSink) -> bool:
        """Listen until agent or container have ended; False when the deadline, which may change, came first."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._bell, selectors.EVENT_READ)
            while self._ended is None:
                if (remaining := deadline() - time.monotonic()) <= 0:
                    return False
                ready = {key.fd for key, _ in selector.select(remaining)}
                if self._bell in ready:
                    os.eventfd_read(self._bell)
                if self._socket.fileno() not in ready:
                    continue
                data = self._receive()
                if not data:
                    return True
                self._take(data, sink)
        return True

    def _receive(self) -> bytes:
        """What the daemon has to say; nothing when the connection is lost, since it is asked about the end anyway."""
        try:
            return self._socket.recv(1 << 16)
        except OSError:
            return b""

    def _take(self, data: bytes, sink: EventSink) -> None:
        for stream, payload in self._frames.feed(data):
            if stream != STDOUT:
                self._stream.note(payload)
                continue
            for event in self._stream.feed(payload):
                if event["event"] == AGENT_ENDED:
                    self._ended = event
                else:
                    sink(event)


def _gone_with_its_files(how: JobExit) -> EngineError:
    """The error of a job whose container ended before its agent did."""
    status = "nobody knows how" if how.status is None else f"exit status {how.status}"
    memory = "The kernel killed it for want of memory (limits.memory_mib)." if how.out_of_memory else ""
    why = (f"It was killed or removed, or its daemon ended ({status}).", memory, how.output)
    return EngineError(
        "The container of a job ended before its agent did, and its files with it.",
        why=" ".join(part for part in why if part),
        remedy="See `docker events` and the daemon's log. What was heard of its tests is in the report.",
    )


def _of_this_host() -> dict[str, list[str]]:
    return {"label": ["allranks=1", f"{HOST_LABEL}={host_id()}"]}


def _names(containers: Sequence[Mapping[str, Any]], volumes: Sequence[str]) -> list[str]:
    return [
        *(f"container {each['Names'][0].lstrip('/')}" for each in containers),
        *(f"volume {name}" for name in volumes),
    ]


@contextmanager
def _as_listing_error() -> Iterator[None]:
    try:
        yield
    except _FAILURES as error:
        msg = "What earlier runs left behind could not be listed."
        raise EngineError(msg, why=str(error), remedy="Check that the Docker daemon runs.") from error


@contextmanager
def _as_engine_error(what: str) -> Iterator[None]:
    try:
        yield
    except _FAILURES as error:
        why = error.explanation if isinstance(error, APIError) and error.explanation else str(error)
        remedy = "See the daemon's log; `allranks clean` removes what may be left."
        raise EngineError(what, why=str(why), remedy=remedy) from error


def creation_request(spec: JobSpec, host: str, code_bytes: int) -> dict[str, Any]:
    """What the daemon is asked to create: a container that may do nothing but compute.

    Args:
        spec: The job.
        host: This host's id, for the labels.
        code_bytes: What its code and the agent's take.
    """
    labels = {**spec.labels, HOST_LABEL: host}
    return {
        "image": spec.image,
        "entrypoint": ["python3"],
        "command": keeper_arguments(),
        "hostname": _NODE,
        "user": f"{USER}:{USER}",
        "working_dir": f"{_ROOT}/shared",
        "environment": container_environment(spec),
        "labels": labels,
        "stdin_open": True,
        "host_config": {
            "network_mode": "none",
            # Without this name gloo looks for the host's address for minutes.
            "extra_hosts": {_NODE: "127.0.0.1"},
            "mounts": [
                _in_memory(_ROOT, code_bytes + RESULTS_BYTES, labels, owner=0),
                _in_memory(f"{_ROOT}/shared", spec.resources.disk_bytes, labels, owner=USER),
            ],
            "tmpfs": {"/tmp": "rw,nosuid,nodev,exec,mode=1777,size=1g"},  # noqa: S108 - the container's own
            "read_only": True,
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges"],
            "init": True,
            "pids_limit": spec.resources.pids,
            "mem_limit": spec.resources.memory_bytes,
            "memswap_limit": spec.resources.memory_bytes,
            "shm_size": spec.resources.shm_bytes,
            "log_config": {"type": "none"},
            **gpu_settings(spec),
        },
    }


def _in_memory(target: str, size: int, labels: Mapping[str, str], owner: int) -> Mount:
    """A volume that holds so many bytes and no more: what a disk holds, few hosts can limit.

    It is there while a container that has it runs. Measured (Docker 20.10): as quick as a volume on the disk; a
    container of its own that holds it would cost half a second.
    """
    options = {"type": "tmpfs", "device": "tmpfs", "o": f"size={size},mode=0755,uid={owner},gid={owner},nosuid,nodev"}
    return Mount(target, "", type="volume", labels=dict(labels), driver_config=DriverConfig("local", options))


def container_name(spec: JobSpec) -> str:
    """A name that tells a person in ``docker ps`` what it is, and that no other attempt has."""
    readable = re.sub(r"[^a-zA-Z0-9_.-]+", "-", spec.job_id)
    return f"allranks-{spec.run_id}-{readable}-{spec.attempt}"


_WAIT_FOR_FILES = """
import os, sys
line = b""
while not line.endswith(b"\\n"):
    piece = os.read(0, 1)
    if not piece:
        sys.exit(130)
    line += piece
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def keeper_arguments() -> list[str]:
    """The command line of a container after the interpreter: it waits for its files, and becomes the keeper."""
    folders = [item for name in ("code", "results", "shared") for item in (f"--{name}", f"{_ROOT}/{name}")]
    keeper = ["-m", "allranks.harness.keeper", "--config", f"{_ROOT}/agent/config.json", *folders]
    return ["-ISc", _WAIT_FOR_FILES, *keeper]


def container_environment(spec: JobSpec) -> dict[str, str]:
    """The agent's variables in a container."""
    return {
        "GLOO_SOCKET_IFNAME": "lo",
        "TP_SOCKET_IFNAME": "lo",
        # A user id without an entry in the password file has neither of these.
        "HOME": f"{_ROOT}/shared",
        "USER": "allranks",
        "PYTHONDONTWRITEBYTECODE": "1",
        **spec.environment,
        "PYTHONPATH": f"{_ROOT}/agent",
        RUN_VARIABLE: spec.run_id,
    }


CDI_KIND = "nvidia.com/gpu"
"""What NVIDIA's toolkit calls its GPUs in the specifications that it writes."""


def gpu_settings(spec: JobSpec) -> dict[str, Any]:
    """What gives a container exactly the GPUs of its job, by id; a count would be the daemon's choice."""
    if not spec.gpus:
        return {"device_requests": []}
    match spec.passthrough.driver:
        case "nvidia":
            requests = [DeviceRequest(driver="nvidia", device_ids=list(spec.gpus), capabilities=[["gpu"]])]
            return {"device_requests": requests}
        case "cdi":
            names = [gpu if "=" in gpu else f"{CDI_KIND}={gpu}" for gpu in spec.gpus]
            return {"device_requests": [DeviceRequest(driver="cdi", device_ids=names)]}
        case "rocm":
            devices = [f"{node}:{node}:rw" for node in spec.passthrough.nodes]
            return {"devices": devices, "group_add": [str(group) for group in spec.passthrough.groups]}


def job_archive(spec: JobSpec, package: tuple[FileCopy, ...]) -> Archive:
    """What goes into the job's volume. Its root stays root's, so each folder below carries the job's user."""
    archive = ArchiveBuilder(USER)
    for name in ("agent", "code", "results"):
        archive.add_folder(name)
    archive.add_bytes("agent/config.json", spec.agent.to_json().encode())
    archive.add_copies("agent", package)
    archive.add_copies("code", spec.files)
    archive.add_copies("results", spec.carried)
    return archive.finish()

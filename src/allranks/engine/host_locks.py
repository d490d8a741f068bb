"""The locks of a daemon's host, for a run that cannot see them.

A runner in a container has a folder of locks of its own, and the host's Docker socket: its leases would exclude no
other run, and no other could tell whether it lives. Such a run starts one more container on the daemon's host, which
mounts the host's own folder of locks and holds locks there for it (:mod:`allranks.schedule.lock_keeper`). So runs in
containers, and runs of the host itself, on any engine, all lock the same files.

The container has nothing else: no network, no capabilities, no root. It ends when its input does, and the daemon ends
that when the connection ends, so no lock outlives its run.
"""

import json
import socket
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final
from uuid import uuid4

import docker
from docker.types import LogConfig, Mount
from docker.utils import kwargs_from_env, parse_host

from allranks.engine.agent_output import STDOUT, FrameReader
from allranks.engine.docker_job import as_engine_error
from allranks.engine.docker_requests import USER
from allranks.engine.leftovers import FAILURES
from allranks.engine.ownership import HOST_LABEL, RUN_LABEL, host_id
from allranks.engine.package import package_folder
from allranks.errors import EngineError
from allranks.interruption import uninterrupted

LOCAL: Final = "http+unix://"
"""Begins the address of a socket on this host."""

_MODULES: Final = (
    "allranks.engine.ownership",
    "allranks.schedule.gpu_leases",
    "allranks.schedule.sick_gpus",
    "allranks.schedule.lock_keeper",
)
"""Each imports only those before it, and the standard library."""

_FOLDERS: Final = ("/run/lock", "/tmp")  # noqa: S108 - see allranks.engine.ownership.lock_folder
_MOUNTED: Final = "/locks"
_PATIENCE: Final = 60.0
"""Seconds for one answer; it takes about a millisecond."""

_REMEDY: Final = (
    "Mount the host's folder into the runner's container (-v /run/lock/allranks:/run/lock/allranks), "
    "or see `docker logs` and the daemon's log."
)

_PROGRAM: Final = """
import json, pathlib, sys, types
base = pathlib.Path(sys.argv[1])
if not base.stat().st_mode & 0o002:
    sys.exit(f"not every user may write {base}")
for name, text in json.loads(sys.stdin.readline()):
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
    if hasattr(module, "lock_folder_in"):
        folder = module.lock_folder_in(base)
        module.lock_folder = lambda: folder
module.serve(sys.stdin, sys.stdout)
"""


def sees_daemon() -> bool:
    """Whether the daemon that the environment names is on this host, and this process in no container of it.

    Linux tells who listens at a socket by a process id of our own process namespace: it is 0 if the process is in none
    that we see (unix(7), ``SO_PEERCRED``).
    """
    address = str(parse_host(kwargs_from_env().get("base_url")))
    if not address.startswith(LOCAL):
        return False
    with socket.socket(socket.AF_UNIX) as door:
        try:
            door.connect(address.removeprefix(LOCAL))
        except OSError:  # whoever needs it finds out
            return True
        pid, _, _ = struct.unpack("3i", door.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return bool(pid)


class HostLocks:
    """A connection to a keeper of locks on a daemon's host, which is started on first use."""

    def __init__(self, client: docker.APIClient) -> None:
        # The :func:`allranks.engine.ownership.locks_place` of the host's folder; empty before the start.
        self.place = ""
        self._client = client
        self._container = ""
        self._attached: Any = None
        self._frames = FrameReader()
        self._lines = bytearray()
        self._turn = threading.Lock()
        self._failure: EngineError | None = None

    def reach(self, image: str, run_id: str) -> None:
        """Start the keeper, unless it runs, in an image with Python; it then owns the run.

        Raises:
            EngineError: The daemon's host has no folder that it could use, or it could not be started.
        """
        if self.place:
            return
        if self._failure is not None:
            raise self._failure
        for folder in _FOLDERS:
            try:
                self._start(image, run_id, folder)
                self.place = self.ask("own", run_id)
            except EngineError as error:
                self._failure = error
                self.close()
            else:
                self._failure = None
                return
        raise self._failure or EngineError(_LOST)

    def _start(self, image: str, run_id: str, folder: str) -> None:
        host_config = self._client.create_host_config(
            mounts=[Mount(_MOUNTED, folder, type="bind")],
            auto_remove=True,
            network_mode="none",
            read_only=True,
            cap_drop=["ALL"],
            # Where SELinux labels files, it would keep a container from all that is not labelled for it.
            security_opt=["no-new-privileges", "label=disable"],
            pids_limit=16,
            mem_limit=256 << 20,
            log_config=LogConfig(type="none"),
        )
        with as_engine_error(_LOST), uninterrupted():
            self._container = self._client.create_container(
                image,
                command=["-ISc", _PROGRAM, _MOUNTED],
                entrypoint=["python3"],
                user=f"{USER}:{USER}",
                working_dir="/",
                labels={"allranks": "1", HOST_LABEL: host_id(), **({RUN_LABEL: run_id} if run_id else {})},
                stdin_open=True,
                host_config=host_config,
                name=f"allranks-locks-{run_id or 'clean'}-{uuid4().hex[:8]}",
            )["Id"]
            params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
            self._attached = self._client.attach_socket(self._container, params=params)
            self._client.start(self._container)
        self._socket.settimeout(_PATIENCE)
        texts = [(name, (package_folder().parent / f"{name.replace('.', '/')}.py").read_text()) for name in _MODULES]
        self._send(texts)

    @property
    def _socket(self) -> socket.socket:
        wrapped: socket.socket = getattr(self._attached, "_sock", self._attached)
        return wrapped

    def ask(self, name: str, *arguments: object) -> Any:  # noqa: ANN401 - any JSON value
        """The keeper's answer to a request of :attr:`allranks.schedule.lock_keeper.LockKeeper.requests`.

        Raises:
            EngineError: The keeper has ended, and its locks are lost.
        """
        # An interrupt between question and answer would give the answer to the next question.
        with self._turn, uninterrupted():
            if self._attached is None:
                raise EngineError(_LOST, remedy=_REMEDY)
            try:
                self._send([name, *arguments])
                return json.loads(self._line())
            except EngineError:
                # For good: jobs that had leases may still run, and a new keeper would lease their GPUs again.
                self._hang_up()
                raise

    def _send(self, value: object) -> None:
        with _as_loss():
            self._socket.sendall(json.dumps(value).encode() + b"\n")

    def _line(self) -> bytes:
        errors = b""
        while b"\n" not in self._lines:
            with _as_loss():
                data = self._socket.recv(1 << 16)
            for stream, payload in self._frames.feed(data):
                if stream == STDOUT:
                    self._lines += payload
                else:
                    errors += payload
            if not data:
                raise EngineError(_LOST, why=errors[-500:].decode("utf-8", "replace").strip(), remedy=_REMEDY)
        line, _, rest = bytes(self._lines).partition(b"\n")
        self._lines[:] = rest
        return line

    def dead(self, run_ids: Iterable[str]) -> frozenset[str]:
        """Those of the runs that no process of the daemon's host owns, nor any keeper there."""
        return frozenset(self.ask("dead", sorted(run_ids)))

    @contextmanager
    def reached(self, image: str) -> Iterator[None]:
        """Reach the keeper for a moment, if it does not run: it then owns nothing.

        Raises:
            EngineError: See :meth:`reach`.
        """
        was_there = bool(self.place)
        self.reach(image, "")
        try:
            yield
        finally:
            if not was_there:
                self.close()

    def close(self) -> None:
        """End the keeper, and with it all locks."""
        self.place = ""
        self._hang_up()
        if self._container:
            with suppress(*FAILURES):  # it may be gone by itself
                self._client.remove_container(self._container, force=True)
            self._container = ""
        self._frames, self._lines = FrameReader(), bytearray()

    def _hang_up(self) -> None:
        if self._attached is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._attached.close()
            self._attached = None


_LOST: Final = "The locks of the daemon's host cannot be held: this run is in a container, or on another host."


@contextmanager
def _as_loss() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EngineError(_LOST, why=str(error), remedy=_REMEDY) from error

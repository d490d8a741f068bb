"""The docker engine: a job is a container that shares nothing with this host but its results.

Docker SDK for Python, API 1.41 (Docker 20.10) or newer. Code goes in and results come out as archives through
the API, so a remote daemon, a rootless one and one whose user differs from ours all work alike.
"""

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import docker
from docker.errors import APIError, NotFound
from docker.utils import kwargs_from_env, parse_host

from allranks.engine.docker_job import FAILURES, DockerJob, as_engine_error
from allranks.engine.docker_requests import ROOT, container_name, creation_request, job_archive
from allranks.engine.ownership import HOST_LABEL, RUN_LABEL, forget_dead_runs, host_id, is_dead
from allranks.engine.spec import FileCopy, JobSpec
from allranks.errors import EngineError
from allranks.interruption import uninterrupted

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
    except FAILURES as error:
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
    def start(self, spec: JobSpec, held: Sequence[int] = ()) -> Iterator[DockerJob]:  # noqa: ARG002
        """See :meth:`allranks.engine.protocol.Engine.start`."""
        with ExitStack() as stack:
            with as_engine_error(f"The container of {spec.job_id} could not be started."):
                identifier = self._create(spec, stack)
                job = DockerJob(self._client, identifier, spec.resources.seconds)
                stack.callback(job.close)
                self._client.put_archive(identifier, ROOT, job_archive(spec, self._package))
                job.attach_and_start()
            yield job

    def _create(self, spec: JobSpec, stack: ExitStack) -> str:
        """Create the container, and have `stack` remove it."""
        if spec.image is None:
            msg = f"job {spec.job_id} names no image"
            raise EngineError(msg)
        request = creation_request(spec, host_id())
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
        except FAILURES:
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
    except FAILURES as error:
        msg = "What earlier runs left behind could not be listed."
        raise EngineError(msg, why=str(error), remedy="Check that the Docker daemon runs.") from error

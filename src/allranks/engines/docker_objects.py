"""Creates and removes the docker engine's objects on a daemon: containers, networks and volumes.

A container shares nothing with this host: code and results are copied through the API, so remote and rootless daemons
work in the same way. The API version is 1.41 (Docker 20.10) or newer.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property, partial

import docker
import requests
from docker.errors import APIError, NotFound

from allranks.engines.agents import make_token
from allranks.engines.archive import PAGE, Archive
from allranks.engines.base import FileCopy, JobSpec, Leftovers
from allranks.engines.docker_job import Container, DockerJob, as_engine_error
from allranks.engines.docker_requests import (
    Daemon,
    container_name,
    container_title,
    creation_request,
    job_archive,
    network_of,
    network_request,
    specs_of_nodes,
    volume_names,
)
from allranks.errors import EngineError
from allranks.images.docker_client import FAILURES
from allranks.images.leftovers import (
    Listed,
    created_at,
    dead_builders,
    foreign_builders,
    is_inactive,
    labels_of,
    reference_of,
    remove_dead_builds,
)
from allranks.interruption import block_signals
from allranks.ownership import (
    GPUS_LABEL,
    HOST_LABEL,
    LOCKS_LABEL,
    RUN_LABEL,
    host_id,
    is_dead,
    is_of_earlier_boot,
    locks_id,
    remove_dead_locks,
)

_REMOVED_WITHIN = 10.0
"""Seconds to retry the removal of an object that another process uses or removes at the same time."""

_IN_USE = frozenset({403, 409})
"""Status codes for an object that another process uses or removes: 403 for a network, 409 for all others."""

_EVICTED_WITHIN = 15.0
"""Seconds for the removal of a container, which includes the release of its GPUs by the driver."""


class DaemonObjects:
    """The objects of allranks on one daemon."""

    def __init__(self, client: docker.DockerClient) -> None:
        self._client = client.api

    @cached_property
    def _daemon(self) -> Daemon:
        with as_engine_error("The daemon does not report the resources of its host."):
            return Daemon.of_info(self._client.info())

    @contextmanager
    def start(self, spec: JobSpec, package: tuple[FileCopy, ...]) -> Iterator[DockerJob]:
        with ExitStack() as stack:
            job = self._start(spec, package, stack)
            stack.callback(job.stop)
            yield job

    def _start(self, spec: JobSpec, package: tuple[FileCopy, ...], stack: ExitStack) -> DockerJob:
        """Create a job's objects and start it; `stack` removes them in reverse order."""
        if spec.image is None:
            msg = f"job {spec.job_id} names no image"
            raise EngineError(msg)
        specs = specs_of_nodes(spec, make_token())
        with _as_reading_error(spec):
            archive = job_archive(specs, package)
        if len(specs) > 1:
            self._make_network(spec, stack)
        for name in volume_names(spec):  # the first container creates them
            stack.callback(_remove, partial(self._client.remove_volume, name))
        containers = [self._make_container(node, archive.pages * PAGE, stack) for node in specs]
        job = DockerJob(self._client, containers, spec.resources.seconds)
        stack.callback(job.close)
        job.start(_pieces(archive, spec))
        return job

    def _make_network(self, spec: JobSpec, stack: ExitStack) -> None:
        request = network_request(spec, _owner_labels())
        # If a signal interrupted the request, the daemon would still create the network, and nothing would remove it.
        with as_engine_error(f"The network of {spec.job_id} could not be created."), block_signals():
            with _undo_on_lost_connection(partial(self._client.remove_network, request["name"])):
                network = self._client.create_network(**request)
            stack.callback(_remove, partial(self._remove_network, network["Id"]))

    def _make_container(self, spec: JobSpec, code_bytes: int, stack: ExitStack) -> Container:
        request = creation_request(spec, _owner_labels(), code_bytes, self._daemon)
        name, title = container_name(spec), container_title(spec)
        host_config = self._client.create_host_config(**request.pop("host_config"))
        with as_engine_error(f"{title} could not be started."), block_signals():
            with _undo_on_lost_connection(partial(self._remove_container, name)):
                container = self._client.create_container(**request, name=name, host_config=host_config)
            stack.callback(_remove, partial(self._remove_container, container["Id"]))
        return Container(self._client, container["Id"], title, network_of(spec))

    def _remove_network(self, network: str) -> None:
        """Remove a job's network, after disconnecting containers that other programs connected to it."""
        for container in self._client.inspect_network(network)["Containers"] or ():
            with suppress(NotFound):
                self._client.disconnect_container_from_network(container, network, force=True)
        self._client.remove_network(network)

    def _remove_container(self, container: str) -> None:
        self._client.remove_container(container, v=True, force=True)

    def evict(self, gpus: Sequence[str]) -> None:
        """Remove the containers of dead runs that still use one of these GPUs."""
        deadline = time.monotonic() + _EVICTED_WITHIN
        while left := self._using(gpus):
            for container in left:
                _try_to_remove(self._remove_container, container["Id"])
            if time.monotonic() > deadline:
                name = left[0]["Names"][0].lstrip("/")
                msg = f"The container {name} of a dead run still has a GPU of this job, and cannot be removed."
                raise EngineError(msg, remedy=f"Remove it by hand: docker rm --force {name}.")
            time.sleep(0.1)

    def _using(self, gpus: Sequence[str]) -> list[Listed]:
        with _as_listing_error():
            filters = {"label": [*_OURS["label"], GPUS_LABEL]}
            listed: list[Listed] = self._client.containers(all=True, filters=filters)
        return [
            container
            for container in listed
            if _is_local(container) and not set(gpus).isdisjoint(json.loads(container["Labels"][GPUS_LABEL]))
        ]

    def clean_up(self, *, is_dry_run: bool) -> Leftovers:
        """Remove objects of dead runs: containers first, since they use the others."""
        with _as_listing_error():
            builders = list(dead_builders(self._client) if is_dry_run else remove_dead_builds(self._client))
            containers, foreign_containers = _by_owner(self._containers())
            if not is_dry_run:
                for container in containers:
                    _try_to_remove(self._remove_container, container["Id"])
            # Only now are the volumes and networks of these containers listed as unused.
            volumes, foreign_volumes = _by_owner(self._volumes())
            networks, foreign_networks = _by_owner(self._networks())
            if not is_dry_run:
                volumes = [item for item in volumes if _try_to_remove(self._client.remove_volume, item["Name"])]
                networks = [item for item in networks if _try_to_remove(self._client.remove_network, item["Id"])]
                remove_dead_locks()
            unknown = _names(foreign_containers, foreign_volumes, foreign_networks, foreign_builders(self._client))
        return Leftovers(_names(containers, volumes, networks, builders), unknown)

    def _containers(self) -> Sequence[Listed]:
        listed: list[Listed] = self._client.containers(all=True, filters=_OURS)
        return listed

    def _volumes(self) -> Sequence[Listed]:
        return self._client.volumes(filters={**_OURS, "dangling": True})["Volumes"] or []

    def _networks(self) -> Sequence[Listed]:
        listed: list[Listed] = self._client.networks(filters=_OURS)
        return listed


def _pieces(archive: Archive, spec: JobSpec) -> Iterator[bytes]:
    with _as_reading_error(spec):
        yield from archive.pieces()


@contextmanager
def _as_reading_error(spec: JobSpec) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        msg = f"The files of {spec.job_id} cannot be read."
        remedy = "Make the files of the suite's folder readable for this user, or move them out of it."
        raise EngineError(msg, why=str(error), remedy=remedy) from error


def _by_owner(listed: Iterable[Listed]) -> tuple[list[Listed], list[Listed]]:
    """The objects of dead runs, and those of runs that may be alive on another host."""
    objects = list(listed)
    return list(filter(_is_dead, objects)), list(filter(_is_foreign, objects))


def _try_to_remove(remove: Callable[[str], object], name: str) -> bool:
    """Remove an object, which may be in use again, or already removed; return whether that succeeded."""
    with suppress(*FAILURES):
        remove(name)
        return True
    return False


def _remove(remove: Callable[[], object]) -> None:
    """Remove an object of a job, and retry while another process removes it or its container.

    If that fails, a later clean-up finds the object by its labels.
    """
    deadline = time.monotonic() + _REMOVED_WITHIN
    with suppress(*FAILURES):
        while time.monotonic() < deadline:
            try:
                remove()
            except APIError as error:
                if error.status_code not in _IN_USE:
                    raise
                time.sleep(0.1)
            else:
                return


@contextmanager
def _undo_on_lost_connection(undo: Callable[[], object]) -> Iterator[None]:
    """Undo a request whose response was lost, since the daemon may have executed it."""
    try:
        yield
    except APIError:  # a response, although the class is derived from requests' exceptions
        raise
    except requests.RequestException:
        with suppress(*FAILURES):
            undo()
        raise


_OURS = {"label": ["allranks=1"]}


def _is_dead(listed: Listed) -> bool:
    """Whether the owner is certainly dead: its lock is free, or its host has restarted."""
    labels = labels_of(listed)
    if _is_local(listed):
        run_id = labels.get(RUN_LABEL, "")
        return bool(run_id) and is_dead(run_id)
    return is_inactive(listed) and is_of_earlier_boot(labels.get(HOST_LABEL, ""), created_at(listed))


def _is_foreign(listed: Listed) -> bool:
    """Whether an object belongs to a run that may be alive, whose lock is not accessible from here."""
    return RUN_LABEL in labels_of(listed) and not _is_local(listed) and not _is_dead(listed)


def _is_local(listed: Listed) -> bool:
    """Whether this process can check the lock, and the GPU leases, of the object's owner."""
    return not _owner_labels().items().isdisjoint(labels_of(listed).items())


def _owner_labels() -> dict[str, str]:
    """The labels that identify the owner of an object, so that other processes can check whether it is alive."""
    return {HOST_LABEL: host_id(), LOCKS_LABEL: locks_id()}


def _names(
    containers: Sequence[Listed], volumes: Sequence[Listed], networks: Sequence[Listed], builders: Sequence[str]
) -> list[str]:
    return [
        *(f"container {container['Names'][0].lstrip('/')}" for container in containers),
        *(f"volume {volume['Name']}" for volume in volumes),
        *(f"network {network['Name']}" for network in networks),
        *(f"the unfinished build of {reference_of(builder)}" for builder in builders),
    ]


@contextmanager
def _as_listing_error() -> Iterator[None]:
    try:
        yield
    except FAILURES as error:
        msg = "The leftovers of earlier runs could not be listed."
        raise EngineError(msg, why=str(error), remedy="Check that the daemon answers (docker version).") from error

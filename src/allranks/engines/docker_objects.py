"""What the docker engine makes of a daemon's objects for a job: containers, a network, volumes; and their removal.

A job's container shares nothing with this host but its results. Docker SDK for Python, API 1.41 (Docker 20.10) or
newer. Code goes in and results come out as archives through the API, so a remote daemon, a rootless one and one whose
user differs from ours all work alike.
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
    dead_builders,
    foreign_builders,
    is_still,
    labels_of,
    made_at,
    reference_of,
    remove_dead_builds,
)
from allranks.interruption import block_signals
from allranks.ownership import (
    GPUS_LABEL,
    HOST_LABEL,
    LOCKS_LABEL,
    RUN_LABEL,
    forget_dead_runs,
    host_id,
    is_dead,
    is_of_earlier_boot,
    locks_place,
)

_REMOVED_WITHIN = 10.0
"""Seconds: an object of a job that has ended stays in use no longer than a removal by another process takes."""

_IN_USE = frozenset({403, 409})
"""Status codes while another process uses or removes something: 403 for a network, 409 for all else."""

_VACATED_WITHIN = 15.0
"""Seconds: another removal of the same container is done by then, and a driver has released its processes."""


class DaemonObjects:
    """The objects of allranks on one daemon."""

    def __init__(self, client: docker.DockerClient) -> None:
        self._client = client.api

    @property
    def _owner(self) -> dict[str, str]:
        """The labels by which others can tell whether the owner of an object lives."""
        return {HOST_LABEL: host_id(), LOCKS_LABEL: locks_place()}

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
        """Make all that a job needs and start it; `stack` removes it again, the last first."""
        if spec.image is None:
            msg = f"job {spec.job_id} names no image"
            raise EngineError(msg)
        specs = specs_of_nodes(spec, make_token())
        with _as_reading_error(spec):
            archive = job_archive(specs, package)
        if len(specs) > 1:
            self._make_network(spec, stack)
        for name in volume_names(spec):  # they are made with the first container that has them
            stack.callback(_insist, partial(self._client.remove_volume, name))
        containers = [self._make_container(each, archive.pages * PAGE, stack) for each in specs]
        job = DockerJob(self._client, containers, spec.resources.seconds)
        stack.callback(job.close)
        job.start(_sent(archive, spec))
        return job

    def _make_network(self, spec: JobSpec, stack: ExitStack) -> None:
        request = network_request(spec, self._owner)
        # After a signal the daemon would still make the network, and no process would remove it.
        with as_engine_error(f"The network of {spec.job_id} could not be made."), block_signals():
            with _undone_without_answer(partial(self._client.remove_network, request["name"])):
                made = self._client.create_network(**request)
            stack.callback(_insist, partial(self._clear_network, made["Id"]))

    def _make_container(self, spec: JobSpec, code_bytes: int, stack: ExitStack) -> Container:
        request = creation_request(spec, self._owner, code_bytes, self._daemon)
        name, title = container_name(spec), container_title(spec)
        host_config = self._client.create_host_config(**request.pop("host_config"))
        with as_engine_error(f"{title} could not be started."), block_signals():
            with _undone_without_answer(partial(self._remove_container, name)):
                made = self._client.create_container(**request, name=name, host_config=host_config)
            stack.callback(_insist, partial(self._remove_container, made["Id"]))
        return Container(self._client, made["Id"], title, network_of(spec))

    def _clear_network(self, network: str) -> None:
        """Remove a job's network, and disconnect containers that others have put into it meanwhile."""
        for container in self._client.inspect_network(network)["Containers"] or ():
            with suppress(NotFound):
                self._client.disconnect_container_from_network(container, network, force=True)
        self._client.remove_network(network)

    def _remove_container(self, container: str) -> None:
        self._client.remove_container(container, v=True, force=True)

    def evict(self, gpus: Sequence[str]) -> None:
        """Remove the containers of dead runs that have one of these GPUs: containers hold no lease."""
        deadline = time.monotonic() + _VACATED_WITHIN
        while left := self._using(gpus):
            for each in left:
                _removes(self._remove_container, each["Id"])
            if time.monotonic() > deadline:
                name = left[0]["Names"][0].lstrip("/")
                msg = f"The container {name} of a dead run still has a GPU of this job, and cannot be removed."
                raise EngineError(msg, remedy=f"See why: docker rm --force {name}.")
            time.sleep(0.1)

    def _using(self, gpus: Sequence[str]) -> list[Listed]:
        with _as_listing_error():
            filters = {"label": [*_OURS["label"], GPUS_LABEL]}
            listed: list[Listed] = self._client.containers(all=True, filters=filters)
        own = self._owner.items()  # the leases of others are not in our folder of locks
        leased_here = [each for each in listed if not own.isdisjoint(labels_of(each).items())]
        return [each for each in leased_here if not set(gpus).isdisjoint(json.loads(each["Labels"][GPUS_LABEL]))]

    def clean_up(self, *, is_dry_run: bool) -> Leftovers:
        """Remove what dead runs have left: containers first, since they hold all else."""
        with _as_listing_error():
            builders = list(dead_builders(self._client) if is_dry_run else remove_dead_builds(self._client))
            containers, others = _sorted(self._containers())
            if not is_dry_run:
                for each in containers:
                    _removes(self._remove_container, each["Id"])
            # Volumes and networks that the containers used are listed as free only now.
            (volumes, more), (networks, rest) = _sorted(self._volumes()), _sorted(self._networks())
            if not is_dry_run:
                volumes = [each for each in volumes if _removes(self._client.remove_volume, each["Name"])]
                networks = [each for each in networks if _removes(self._client.remove_network, each["Id"])]
                forget_dead_runs()
            unknown = _names(others, more, rest, foreign_builders(self._client))
        return Leftovers(_names(containers, volumes, networks, builders), unknown)

    def _containers(self) -> Sequence[Listed]:
        listed: list[Listed] = self._client.containers(all=True, filters=_OURS)
        return listed

    def _volumes(self) -> Sequence[Listed]:
        return self._client.volumes(filters={**_OURS, "dangling": True})["Volumes"] or []

    def _networks(self) -> Sequence[Listed]:
        listed: list[Listed] = self._client.networks(filters=_OURS)
        return listed


def _sent(archive: Archive, spec: JobSpec) -> Iterator[bytes]:
    with _as_reading_error(spec):
        yield from archive.pieces()


@contextmanager
def _as_reading_error(spec: JobSpec) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        msg = f"The files of {spec.job_id} cannot be read."
        remedy = "Make the suite's folder readable for this user, or move such files out of it."
        raise EngineError(msg, why=str(error), remedy=remedy) from error


def _sorted(listed: Iterable[Listed]) -> tuple[list[Listed], list[Listed]]:
    """What belongs to dead runs, and what to runs of which that is not known here."""
    every = list(listed)
    return list(filter(_is_dead, every)), list(filter(_is_foreign, every))


def _removes(remove: Callable[[str], object], name: str) -> bool:
    """True if something was removed: it may be in use again, or gone. What stays has labels for a later clean-up."""
    with suppress(*FAILURES):
        remove(name)
        return True
    return False


def _insist(remove: Callable[[], object]) -> None:
    """Remove an object of this job alone, even if another process removes it, or its container, at the same moment.

    An object that cannot be removed keeps its labels for a later clean-up.
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
def _undone_without_answer(undo: Callable[[], object]) -> Iterator[None]:
    """Undo a request to the daemon whose answer never arrived: the daemon may have executed it."""
    try:
        yield
    except APIError:  # an answer, though the SDK derives it from requests' exceptions, too
        raise
    except requests.RequestException:
        with suppress(*FAILURES):
            undo()
        raise


_OURS = {"label": ["allranks=1"]}


def _is_dead(listed: Listed) -> bool:
    """True if the owner is certainly dead: its lock is free, or the boot that it lived in is over."""
    labels = labels_of(listed)
    host, run_id, place = (labels.get(name, "") for name in (HOST_LABEL, RUN_LABEL, LOCKS_LABEL))
    if host == host_id() or place == locks_place():
        return bool(run_id) and is_dead(run_id)
    return is_still(listed) and is_of_earlier_boot(host, made_at(listed))


def _is_foreign(listed: Listed) -> bool:
    """True if something belongs to a run whose owner may live where its lock cannot be seen from here."""
    labels = labels_of(listed)
    is_of_here = labels.get(HOST_LABEL) == host_id() or labels.get(LOCKS_LABEL) == locks_place()
    return RUN_LABEL in labels and not is_of_here and not _is_dead(listed)


def _names(
    containers: Sequence[Listed], volumes: Sequence[Listed], networks: Sequence[Listed], builders: Sequence[str]
) -> list[str]:
    return [
        *(f"container {each['Names'][0].lstrip('/')}" for each in containers),
        *(f"volume {each['Name']}" for each in volumes),
        *(f"network {each['Name']}" for each in networks),
        *(f"the unfinished build of {reference_of(builder)}" for builder in builders),
    ]


@contextmanager
def _as_listing_error() -> Iterator[None]:
    try:
        yield
    except FAILURES as error:
        msg = "The leftovers of earlier runs could not be listed."
        raise EngineError(msg, why=str(error), remedy="Check that the Docker daemon runs.") from error

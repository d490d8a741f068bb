"""Finds and removes leftovers of interrupted builds.

The legacy builder creates an image for each step and a container for each command. A build that fails, or that loses
its client, leaves the images of the completed steps, which may take gigabytes. They have a label with the host and the
image that was being built.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from docker import APIClient

from allranks.images.docker_client import FAILURES
from allranks.ownership import exclusive_lock, host_id, image_lock, is_held, is_of_earlier_boot
from allranks.protocol.grouping import by_key

Listed = Mapping[str, Any]
"""A container, image, volume or network in a list of the daemon."""

_ACTIVE = frozenset({"running", "paused", "restarting"})


def labels_of(listed: Listed) -> Mapping[str, str]:
    """The labels of an object."""
    return listed.get("Labels") or {}


def is_inactive(listed: Listed) -> bool:
    """False for an active container. The daemon itself refuses to remove volumes and networks that are in use."""
    return listed.get("State") not in _ACTIVE


def created_at(listed: Listed) -> float:
    """When the object was created, in seconds since the epoch; infinity if unknown.

    The daemon lists containers and images with a number, but volumes and networks with a date.
    """
    created = listed.get("Created", listed.get("CreatedAt"))
    if isinstance(created, int):
        return created
    try:
        return datetime.fromisoformat(str(created)).timestamp()
    except ValueError:
        return float("inf")


LABEL = "allranks.builder"

_NO_COMMAND = "#(nop)"
"""Marks a step without a command in the legacy builder."""


def builder_of(reference: str) -> str:
    """The value of the label for the build of an image on this host."""
    return f"{host_id()}/{reference}"


def remove_leftovers(client: APIClient, builder: str) -> None:
    """Remove the leftovers of a build; those that cannot be removed now are left to the next run."""
    label = {"label": f"{LABEL}={builder}"}
    with suppress(*FAILURES):
        for container in client.containers(all=True, filters=label):
            with suppress(*FAILURES):
                client.remove_container(container["Id"], v=True, force=True)
        for image in client.images(filters={**label, "dangling": True}):
            with suppress(*FAILURES):
                client.remove_image(image["Id"])


def end_step(client: APIClient, builder: str) -> None:
    """Make a build fail, by removing the container of its current command, if there is one.

    Containers of steps without a command must be left to the daemon: if one is missing, the daemon leaves later ones.
    """
    with suppress(*FAILURES):
        for container in client.containers(all=True, filters={"label": f"{LABEL}={builder}"}):
            if _NO_COMMAND not in container["Command"]:
                with suppress(*FAILURES):
                    client.remove_container(container["Id"], v=True, force=True)


def dead_builders(client: APIClient) -> list[str]:
    """The labels of builds that have leftovers, but no longer run."""
    return [builder for builder, left in _unfinished(client).items() if _is_dead(builder, left)]


def foreign_builders(client: APIClient) -> list[str]:
    """The labels of builds of other hosts, which may be alive."""
    found = _unfinished(client)
    return [builder for builder, left in found.items() if not (_is_local(builder) or _is_dead(builder, left))]


def _unfinished(client: APIClient) -> dict[str, list[Listed]]:
    """The images and containers of unfinished builds, by label."""
    label = {"label": LABEL}
    found = (*client.images(filters={**label, "dangling": True}), *client.containers(all=True, filters=label))
    # The label is empty in the images of finished builds, and in their containers.
    return by_key((builder, listed) for listed in found if (builder := labels_of(listed).get(LABEL)))


def _is_dead(builder: str, left: Sequence[Listed]) -> bool:
    if _is_local(builder):
        return not is_held(_lock(builder))
    host, _, _ = builder.partition("/")
    return all(is_inactive(listed) and is_of_earlier_boot(host, created_at(listed)) for listed in left)


def remove_dead_builds(client: APIClient) -> Iterator[str]:
    """Remove the leftovers of dead builds; yield their labels."""
    for builder in dead_builders(client):
        with exclusive_lock(_lock(builder)) as is_locked:
            if is_locked:
                remove_leftovers(client, builder)
                yield builder


def _is_local(builder: str) -> bool:
    return builder.startswith(f"{host_id()}/")


def _lock(builder: str) -> Path:
    return image_lock(reference_of(builder))


def reference_of(builder: str) -> str:
    """The image that a build with this label creates."""
    return builder.partition("/")[2]

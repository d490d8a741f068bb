"""Leftover objects in a daemon's lists, and leftovers of interrupted builds.

The legacy builder makes an image of every step and a container for every command. A build that fails, or whose client
goes away, leaves the images of the completed steps: gigabytes, if they hold wheels. All of them, and nothing else,
carry one label that names the host and the image that it builds.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from docker import APIClient

from allranks.images.docker_client import FAILURES
from allranks.ownership import alone, host_id, image_lock, is_held, is_of_earlier_boot

Listed = Mapping[str, Any]
"""A container, image, volume or network as the daemon lists it."""

_GOING = frozenset({"running", "paused", "restarting"})


def labels_of(listed: Listed) -> Mapping[str, str]:
    """Its labels."""
    return listed.get("Labels") or {}


def is_still(listed: Listed) -> bool:
    """Whether nothing runs in it; the daemon itself refuses to remove a volume or network in use."""
    return listed.get("State") not in _GOING


def made_at(listed: Listed) -> float:
    """When it was made, in seconds since the epoch; infinity if the daemon does not report it.

    It lists containers and images with a number, volumes and networks with a date, under a different key.
    """
    made = listed.get("Created", listed.get("CreatedAt"))
    if isinstance(made, int):
        return made
    try:
        return datetime.fromisoformat(str(made)).timestamp()
    except ValueError:
        return float("inf")


LABEL = "allranks.builder"

_NO_COMMAND = "#(nop)"
"""The legacy builder's placeholder for the command of a step that has none."""


def builder_of(reference: str) -> str:
    """The value of the label while an image of that reference is built on this host."""
    return f"{host_id()}/{reference}"


def remove_remains(client: APIClient, builder: str) -> None:
    """Remove the leftovers of one build; the next run removes at its start what cannot be removed now."""
    label = {"label": f"{LABEL}={builder}"}
    with suppress(*FAILURES):
        for container in client.containers(all=True, filters=label):
            with suppress(*FAILURES):
                client.remove_container(container["Id"], v=True, force=True)
        for image in client.images(filters={**label, "dangling": True}):
            with suppress(*FAILURES):
                client.remove_image(image["Id"])


def end_step(client: APIClient, builder: str) -> None:
    """Remove the container of a build's current command, started or not, if there is one: then the build fails.

    Containers of steps without a command are left to the daemon: if it misses one, it removes no later one.
    """
    with suppress(*FAILURES):
        for container in client.containers(all=True, filters={"label": f"{LABEL}={builder}"}):
            if _NO_COMMAND not in container["Command"]:
                with suppress(*FAILURES):
                    client.remove_container(container["Id"], v=True, force=True)


def dead_builders(client: APIClient) -> list[str]:
    """The labels of this host's builds whose builder is dead."""
    return [builder for builder, left in _unfinished(client).items() if _is_dead(builder, left)]


def foreign_builders(client: APIClient) -> list[str]:
    """The labels of builds whose builder may live, which cannot be determined from here."""
    found = _unfinished(client)
    return [builder for builder, left in found.items() if not (_is_of_here(builder) or _is_dead(builder, left))]


def _unfinished(client: APIClient) -> dict[str, list[Listed]]:
    """The images and containers of unfinished builds, by their labels."""
    label = {"label": LABEL}
    builds: dict[str, list[Listed]] = {}
    for each in (*client.images(filters={**label, "dangling": True}), *client.containers(all=True, filters=label)):
        if builder := labels_of(each).get(LABEL):  # finished images have an empty one, which their containers inherit
            builds.setdefault(builder, []).append(each)
    return builds


def _is_dead(builder: str, left: Sequence[Listed]) -> bool:
    if _is_of_here(builder):
        return not is_held(_lock(builder))
    host, _, _ = builder.partition("/")
    return all(is_still(each) and is_of_earlier_boot(host, made_at(each)) for each in left)


def remove_dead_builds(client: APIClient) -> Iterator[str]:
    """Remove what dead builds of this host have left; yield the label of each."""
    for builder in dead_builders(client):
        with alone(_lock(builder)) as is_nobodys:
            if is_nobodys:
                remove_remains(client, builder)
                yield builder


def _is_of_here(builder: str) -> bool:
    return builder.startswith(f"{host_id()}/")


def _lock(builder: str) -> Path:
    return image_lock(reference_of(builder))


def reference_of(builder: str) -> str:
    """The image that a build with this label was to make."""
    return builder.partition("/")[2]

"""What builds of images leave in a daemon when they end early, and whose it is.

The legacy builder makes an image of every step and a container for every command. A build that fails, or whose client
goes away, leaves the images of the steps that it had done: gigabytes, where they hold wheels. All of them, and nothing
else, carry one label that says which host builds what.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import requests
from docker import APIClient
from docker.errors import DockerException

from allranks.engine.ownership import alone, host_id, image_lock, is_held

LABEL = "allranks.builder"

_NO_COMMAND = "#(nop)"
"""What the legacy builder writes in the place of a command where a step has none."""

_FAILURES = (DockerException, requests.RequestException, OSError)


def builder_of(reference: str) -> str:
    """The value of the label while an image of that reference is built on this host."""
    return f"{host_id()}/{reference}"


def remove_remains(client: APIClient, builder: str) -> None:
    """Remove what one build has left; what cannot be removed now is found by the next run's start.

    Args:
        client: The daemon's API.
        builder: The value of the build's label.
    """
    label = {"label": f"{LABEL}={builder}"}
    with suppress(*_FAILURES):
        for container in client.containers(all=True, filters=label):
            with suppress(*_FAILURES):
                client.remove_container(container["Id"], v=True, force=True)
        for image in client.images(filters={**label, "dangling": True}):
            with suppress(*_FAILURES):
                client.remove_image(image["Id"])


def end_step(client: APIClient, builder: str) -> None:
    """Remove the container of the command that a build is at, started or not, if it is at one: the build fails then.

    Those of steps without a command stay the daemon's: it removes none that it makes later if it does not find one.
    """
    with suppress(*_FAILURES):
        for container in client.containers(all=True, filters={"label": f"{LABEL}={builder}"}):
            if _NO_COMMAND not in container["Command"]:
                with suppress(*_FAILURES):
                    client.remove_container(container["Id"], v=True, force=True)


def dead_builders(client: APIClient) -> list[str]:
    """The labels of builds of this host that nobody sees to any more.

    Raises:
        DockerException: The daemon could not be asked.
    """
    label = {"label": LABEL}
    found: list[dict[str, Any]] = client.images(filters={**label, "dangling": True})
    found += client.containers(all=True, filters=label)
    builders = dict.fromkeys((each["Labels"] or {}).get(LABEL, "") for each in found)
    return [builder for builder in builders if _is_of_this_host(builder) and not is_held(_lock(builder))]


def reap_builders(client: APIClient) -> Iterator[str]:
    """Remove what dead builds of this host have left; the label of each.

    Raises:
        DockerException: The daemon could not be asked.
    """
    for builder in dead_builders(client):
        with alone(_lock(builder)) as is_nobodys:
            if is_nobodys:
                remove_remains(client, builder)
                yield builder


def _is_of_this_host(builder: str) -> bool:
    return builder.startswith(f"{host_id()}/")


def _lock(builder: str) -> Path:
    return image_lock(reference_of(builder))


def reference_of(builder: str) -> str:
    """The image that a build with this label was to make."""
    return builder.partition("/")[2]

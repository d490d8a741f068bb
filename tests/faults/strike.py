"""Actions on the container of a node from outside, at the moment when a rank prints that it waits."""

from collections.abc import Callable
from contextlib import closing

import docker
from docker.errors import APIError

from allranks.images.docker_client import connect

WORD = "waiting now"
"""Printed by a rank right before it waits: ``pytest_args`` of such a fault has ``-s``, so that it is not captured."""

_TRIES = 20


def strike(run_id: str, deed: str, node: int) -> None:
    """Do this to the container of a node of a run's only job."""
    with closing(connect()) as client:
        filters = {"label": [f"allranks.run={run_id}", f"allranks.node={node}"]}
        [container] = client.api.containers(filters=filters)
        _DEEDS[deed](client.api, container["Id"])


def _pause(client: docker.APIClient, container: str) -> None:
    """Pause it, with retries: on a busy machine, runc gives up if freezing all processes takes too long."""
    for _ in range(_TRIES - 1):
        try:
            client.pause(container)
        except APIError as error:
            if "unable to freeze" not in str(error.explanation):
                raise
        else:
            return
    client.pause(container)


_DEEDS: dict[str, Callable[[docker.APIClient, str], None]] = {
    "kill": lambda client, container: client.kill(container),
    "pause": _pause,
    "remove": lambda client, container: client.remove_container(container, force=True),
}

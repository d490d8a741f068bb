"""Helper containers of the docker engine: they disturb what nodes receive from each other.

The containers of the job get no capability for that: beside each of them runs another one in its network name space,
with the capability to administrate that alone (:mod:`allranks.network_helper`). It ends when its input does.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import docker

from allranks.engine.docker_job import Container, as_engine_error
from allranks.engine.docker_requests import container_name, network_of
from allranks.engine.package import package_folder
from allranks.engine.protocol import JobSpec
from allranks.errors import EngineError
from allranks.network_helper import READY
from allranks.skew import OFF

_START = 60.0
"""Seconds for a helper to be ready, which takes a tenth of one."""

MakeContainer = Callable[[dict[str, Any], str, str], Container]
"""Makes a container from its request, its name and its title, and ends and removes it with the job."""


def is_disturbed(spec: JobSpec) -> bool:
    """Whether the network of this job is to be disturbed."""
    return spec.agent.stress is not None and spec.agent.stress.network != OFF


def start_helpers(
    client: docker.APIClient,
    specs: Sequence[JobSpec],
    nodes: Sequence[Container],
    owner: Mapping[str, str],
    make: MakeContainer,
) -> None:
    """Start a helper for each node of a job, and see that each can do its work.

    Raises:
        EngineError: One cannot: the kernel lacks what it needs, or the job has one node.
    """
    if len(nodes) == 1:
        msg = f"The network of {specs[0].job_id} cannot be disturbed: it has one node."
        raise EngineError(msg, remedy="Leave out --network.")
    with as_engine_error(f"The addresses of {specs[0].job_id} are unknown."):
        addresses = [_address(client, spec, node) for spec, node in zip(specs, nodes, strict=True)]
    for spec, node in zip(specs, nodes, strict=True):
        number = spec.agent.node
        peers = {other: address for other, address in enumerate(addresses) if other != number}
        name, title = container_name(spec, "network"), f"The helper of node {number} of {spec.job_id}"
        helper = make(helper_request(spec, owner, node.identifier, peers), name, title)
        helper.attach_and_start()
        if (line := helper.first_line(_START)) != READY:
            msg = f"The network of {spec.job_id} cannot be disturbed."
            raise EngineError(msg, why=f"{title} reports: {line[-300:] or 'nothing'}", remedy=_REMEDY)


_REMEDY = (
    "The kernel of the daemon's host needs NFQUEUE: sudo modprobe -a nft_compat xt_NFQUEUE nfnetlink_queue. "
    "Or leave out --network."
)


def helper_request(spec: JobSpec, owner: Mapping[str, str], beside: str, peers: Mapping[int, str]) -> dict[str, Any]:
    """The request for a node's helper.

    Args:
        spec: The node's part of the job.
        owner: The labels of its owner.
        beside: The id of the node's container.
        peers: The addresses of the other nodes.
    """
    program = (package_folder() / "network_helper.py").read_text(encoding="utf-8")
    return {
        "image": spec.image,
        "entrypoint": ["python3"],
        "command": ["-ISc", program, *(f"{node}={address}" for node, address in peers.items())],
        "user": "0:0",  # of another user's process, the kernel would drop the capability
        "working_dir": "/",
        "labels": {**spec.labels, **owner},
        "stdin_open": True,
        "host_config": {
            "network_mode": f"container:{beside}",
            "auto_remove": True,
            "read_only": True,
            "cap_drop": ["ALL"],
            "cap_add": ["NET_ADMIN"],
            "security_opt": ["no-new-privileges"],
            "pids_limit": 16,
            "mem_limit": 256 << 20,
            "log_config": {"type": "none"},
        },
    }


def _address(client: docker.APIClient, spec: JobSpec, node: Container) -> str:
    return str(client.inspect_container(node.identifier)["NetworkSettings"]["Networks"][network_of(spec)]["IPAddress"])

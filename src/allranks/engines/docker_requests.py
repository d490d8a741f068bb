"""Builds the docker engine's requests from the specification of a job, without a daemon."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from docker.types import DeviceRequest, DriverConfig, Mount, Ulimit

from allranks.agent.container_init import COMMAND, ISOLATED
from allranks.engines.agents import spec_of_node
from allranks.engines.archive import Archive
from allranks.engines.base import LISTS, FileCopy, JobSpec, unique_name
from allranks.ownership import RUN_VARIABLE
from allranks.protocol.config import RESULTS_BYTES, NodeConfig

USER = 10001
"""The user and group id of every job, which no distribution assigns."""

ROOT = "/job"
"""The mount point of a job's volume in its container."""

PORT = 29400
"""The port of the lead agent; the network has no other containers."""

INTERFACE = "eth0"
"""Docker's name for a container's interface to its only network."""

NODE_LABEL = "allranks.node"

_LONGEST_NAME = 63
"""The limit of a host name (RFC 1123): container names are also host names for Docker's name server."""

_SECCOMP = Path(__file__).with_name("seccomp.json")
"""The seccomp profile of a job, in Docker's format (api/seccomp.md of moby), with a reason for each rule."""

_CPU_SHARES_PER_RANK = 512
"""A job of two ranks then has the default of a container, 1024 shares."""


@dataclass(frozen=True, kw_only=True)
class Daemon:
    """The capabilities of a daemon's host."""

    cpus: int
    limits_cpus: bool  # its kernel can limit the CPU usage of containers
    has_seccomp: bool  # its kernel can filter system calls

    @classmethod
    def of_info(cls, info: Mapping[str, Any]) -> "Daemon":
        """Read the result of ``GET /info``."""
        options = info.get("SecurityOptions") or ()
        return cls(
            cpus=int(info["NCPU"]),
            limits_cpus=bool(info.get("CpuCfsQuota")),
            has_seccomp=any(option.startswith("name=seccomp") for option in options),
        )


def node_name(node: int) -> str:
    """A node's host name in the job's network."""
    return f"node{node}"


def own_folder(node: int) -> str:
    """The folder of a node's agent in the job's volume, which all nodes share."""
    return f"{ROOT}/node-{node}" if node else ROOT


def specs_of_nodes(spec: JobSpec, token: str) -> list[JobSpec]:
    """The specification of each node of a job."""
    nodes = spec.agent.nodes
    if nodes == 1:
        return [spec]
    leader = node_name(0)
    agent = replace(spec.agent, master_addr=leader)
    configs = [NodeConfig(node=node, leader=leader, port=PORT, token=token) for node in range(nodes)]
    return [spec_of_node(spec, replace(agent, node_config=config)) for config in configs]


def object_name(spec: JobSpec, *suffixes: str) -> str:
    """A readable name, unique to this attempt, that is also a valid host name."""
    return unique_name(spec.job_id, str(spec.attempt), *suffixes, spec.run_id, longest=_LONGEST_NAME)


def container_name(spec: JobSpec) -> str:
    """The name of a node's container."""
    return object_name(spec, *([] if spec.agent.nodes == 1 else [node_name(spec.agent.node)]))


def container_title(spec: JobSpec) -> str:
    """The name of a container at the start of a message."""
    owner = spec.job_id if spec.agent.nodes == 1 else f"node {spec.agent.node} of {spec.job_id}"
    return f"The container of {owner}"


def network_of(spec: JobSpec) -> str | None:
    """The name of the job's network; None for a job on one node."""
    return None if spec.agent.nodes == 1 else object_name(spec)


def _labels(spec: JobSpec, owner: Mapping[str, str]) -> dict[str, str]:
    return {**spec.labels, **owner}


def volume_names(spec: JobSpec) -> tuple[str, ...]:
    """The names of the volumes that all nodes of a job share: its own files, and the files of its tests.

    Anonymous volumes would remain if another client removed the container (``docker rm`` keeps them).
    """
    return object_name(spec), object_name(spec, "shared")


def network_request(spec: JobSpec, owner: Mapping[str, str]) -> dict[str, Any]:
    """The request for the network of a job's nodes."""
    return {
        "name": object_name(spec),
        "driver": "bridge",
        "check_duplicate": True,
        # No route to other networks. Without the option below, the host and its services would be reachable as the
        # gateway (Docker 20.10).
        "internal": True,
        "options": {"com.docker.network.bridge.inhibit_ipv4": "true"},
        "labels": _labels(spec, owner),
    }


def creation_request(spec: JobSpec, owner: Mapping[str, str], code_bytes: int, daemon: Daemon) -> dict[str, Any]:
    """The request for an isolated container."""
    limits = spec.resources
    return {
        "image": spec.image,
        "entrypoint": ["python3"],
        "command": keeper_arguments(spec.agent.node),
        "hostname": node_name(spec.agent.node),
        "user": f"{USER}:{USER}",
        "working_dir": f"{ROOT}/shared",
        "environment": container_environment(spec),
        "labels": {**_labels(spec, owner), NODE_LABEL: str(spec.agent.node)},
        "stdin_open": True,
        "networking_config": _endpoint(spec),
        "host_config": {
            **_network_settings(spec),
            "mounts": _mounts(spec, owner, code_bytes),
            "tmpfs": {"/tmp": "rw,nosuid,nodev,exec,mode=1777,size=1g"},  # noqa: S108 - the container's own
            "read_only": True,
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges", *_seccomp(spec, daemon)],
            **_cpu_settings(limits.cpus, daemon),
            "pids_limit": limits.pids,
            "mem_limit": limits.memory_bytes,
            "memswap_limit": limits.memory_bytes,
            "shm_size": limits.shm_bytes,
            "log_config": {"type": "none"},
            "cgroupns": "private",
            # A core dump of a rank would take gigabytes, wherever the host's kernel stores them.
            # No limit of open files: a container whose limit is above the daemon's fails (rlimit type 7).
            # No limit of processes (nproc): it would count the processes of all jobs of the host, which share a user.
            "ulimits": [Ulimit(name="core", soft=0, hard=0)],
            **gpu_settings(spec),
        },
    }


def _seccomp(spec: JobSpec, daemon: Daemon) -> list[str]:
    """The profile of allranks, unless the daemon's is requested or the kernel has no seccomp."""
    if spec.seccomp == "default" or not daemon.has_seccomp:
        return []
    return [f"seccomp={json.dumps(json.loads(_SECCOMP.read_text(encoding='utf-8')))}"]


def _cpu_settings(ranks: int, daemon: Daemon) -> dict[str, int]:
    """CPU shares in proportion to the ranks, and a limit that leaves CPUs for the daemon and the orchestrator.

    Shares only take effect under contention, so they do not slow down a job that runs alone. The limit, three quarters
    of the CPUs but at least one per rank, restricts tests that start a thread for each CPU.
    """
    limit = min(daemon.cpus, max(ranks, -(-daemon.cpus * 3 // 4)))
    nano_cpus = {"nano_cpus": limit * 10**9} if daemon.limits_cpus else {}
    return {"cpu_shares": _CPU_SHARES_PER_RANK * ranks, **nano_cpus}


def _mounts(spec: JobSpec, owner: Mapping[str, str], code_bytes: int) -> list[Mount]:
    files, written = volume_names(spec)
    labels, limits = _labels(spec, owner), spec.resources
    return [
        _in_memory(files, ROOT, code_bytes + RESULTS_BYTES * spec.agent.nodes, labels, owner=0),
        _in_memory(written, f"{ROOT}/shared", limits.disk_bytes, labels, owner=USER),
    ]


def _in_memory(name: str, target: str, size: int, labels: Mapping[str, str], *, owner: int) -> Mount:
    """A volume of limited size in memory, since few hosts can limit a volume on disk.

    Its content exists while a container that mounts it runs. It is as fast as a volume on disk (measured on Docker
    20.10); a second container to keep it mounted would cost half a second.
    """
    options = {"type": "tmpfs", "device": "tmpfs", "o": f"size={size},mode=0755,uid={owner},gid={owner},nosuid,nodev"}
    return Mount(target, name, type="volume", labels=dict(labels), driver_config=DriverConfig("local", options))


def _network_settings(spec: JobSpec) -> dict[str, Any]:
    """No network for one node; otherwise the job's network, in which only its nodes' names are resolved.

    Docker's name server resolves these names itself, and forwards all others, even out of an internal network
    (CVE-2024-29018). These settings forward them to an address of the container where no server listens. Their lookup
    ends with a timeout, which is at least one second.
    """
    if spec.agent.nodes == 1:
        # Without this name, gloo searches for the host's address for minutes.
        return {"network_mode": "none", "extra_hosts": {node_name(0): "127.0.0.1"}}
    return {
        "network_mode": object_name(spec),
        "dns": ["127.0.0.1"],
        "dns_search": ["."],
        "dns_opt": ["timeout:1", "attempts:1"],
    }


def _endpoint(spec: JobSpec) -> dict[str, Any] | None:
    if spec.agent.nodes == 1:
        return None
    return {"EndpointsConfig": {object_name(spec): {"Aliases": [node_name(spec.agent.node)]}}}


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


def keeper_arguments(node: int) -> list[str]:
    """The arguments of a container's interpreter: it waits for its files, then becomes the container init."""
    own = own_folder(node)
    return [
        *("-ISc", _WAIT_FOR_FILES),
        *(*ISOLATED, f"{ROOT}/agent/allranks/agent/{COMMAND.name}", "keep"),
        *("--config", f"{own}/agent/config.json"),
        *("--code", f"{ROOT}/code"),
        *("--results", f"{own}/results"),
        *("--shared", f"{ROOT}/shared"),
    ]


def container_environment(spec: JobSpec) -> dict[str, str]:
    """The environment variables of an agent in a container."""
    return {
        **_interfaces(spec.agent.nodes),
        # Not set by default for a user id without an entry in /etc/passwd.
        "HOME": f"{ROOT}/shared",
        "USER": "allranks",
        "PYTHONDONTWRITEBYTECODE": "1",
        **{copy.target.name: f"{ROOT}/code/{copy.target}" for copy in spec.files if copy.target.parent == LISTS},
        **spec.environment,
        "PYTHONPATH": f"{ROOT}/agent:{ROOT}/project" if spec.python_path else f"{ROOT}/agent",
        RUN_VARIABLE: spec.run_id,
    }


def _interfaces(nodes: int) -> dict[str, str]:
    """The network interface of ranks: gloo and TensorPipe do not always choose that of the node's name."""
    if nodes == 1:
        return {"GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo"}
    return dict.fromkeys(("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), INTERFACE)


CDI_KIND = "nvidia.com/gpu"
"""The kind of device in CDI specifications from NVIDIA's toolkit."""


def gpu_settings(spec: JobSpec) -> dict[str, Any]:
    """Settings that pass the GPUs of the job by id: with only a count of GPUs, the daemon would choose them."""
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


def job_archive(specs: Sequence[JobSpec], package: tuple[FileCopy, ...]) -> Archive:
    """The content of the job's volume. The volume belongs to root, and everything in it to the job's user."""
    archive = Archive(USER)
    for name in ("agent", "code"):
        archive.add_folder(name)
    archive.add_copies("agent", package)
    archive.add_copies("code", specs[0].files)
    archive.add_copies("project", (FileCopy(source=path, target=Path()) for path in specs[0].python_path))
    for spec in specs:
        own = PurePosixPath(own_folder(spec.agent.node)).relative_to(ROOT)
        archive.add_folder(str(own / "results"))
        archive.add_secret(str(own / "agent" / "config.json"), spec.agent.to_json().encode())
        archive.add_copies(str(own / "results"), spec.carried)
    return archive

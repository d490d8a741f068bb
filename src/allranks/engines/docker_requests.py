"""The docker engine's requests to the daemon, made of a job alone, and testable without a daemon."""

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
"""User and group of every job: a number that no distribution assigns."""

ROOT = "/job"
"""The mount point of a job's volume in its container."""

PORT = 29400
"""The port of the leading agent, on a network that has only the job's agents."""

INTERFACE = "eth0"
"""Docker's name for a container's interface to its only network."""

NODE_LABEL = "allranks.node"

_LONGEST_NAME = 63
"""Characters of a host name (RFC 1123): Docker's name server answers for the names of containers."""

_SECCOMP = Path(__file__).with_name("seccomp.json")
"""The system calls that a job may make, in Docker's format (api/seccomp.md of moby); each rule gives its reason."""

_SHARES_OF_RANK = 512
"""CPU shares: a job of two ranks counts as much as any other container of the daemon, which has 1024."""


@dataclass(frozen=True, kw_only=True)
class Daemon:
    """The abilities of a daemon's host."""

    cpus: int
    limits_cpus: bool  # its kernel can limit how much of them containers use
    has_seccomp: bool  # its kernel can filter system calls

    @classmethod
    def of_info(cls, said: Mapping[str, Any]) -> "Daemon":
        """The abilities in a daemon's ``GET /info``."""
        options = said.get("SecurityOptions") or ()
        return cls(
            cpus=int(said["NCPU"]),
            limits_cpus=bool(said.get("CpuCfsQuota")),
            has_seccomp=any(option.startswith("name=seccomp") for option in options),
        )


def node_name(node: int) -> str:
    """A node's name in the job's network."""
    return f"node{node}"


def own_folder(node: int) -> str:
    """The own folder of one node's agent in the job's volume, which all nodes share."""
    return f"{ROOT}/node-{node}" if node else ROOT


def specs_of_nodes(spec: JobSpec, token: str) -> list[JobSpec]:
    """The part of a job for each of its nodes; the job itself if it has one node."""
    nodes = spec.agent.nodes
    if nodes == 1:
        return [spec]
    leader = node_name(0)
    agent = replace(spec.agent, master_addr=leader)
    posts = [NodeConfig(node=node, leader=leader, port=PORT, token=token) for node in range(nodes)]
    return [spec_of_node(spec, replace(agent, node_config=post)) for post in posts]


def object_name(spec: JobSpec, *further: str) -> str:
    """A readable name for ``docker ps``, unique to this attempt, and legal as a host name, too."""
    return unique_name(spec.job_id, str(spec.attempt), *further, spec.run_id, longest=_LONGEST_NAME)


def container_name(spec: JobSpec) -> str:
    """The name of one node's container."""
    return object_name(spec, *([] if spec.agent.nodes == 1 else [node_name(spec.agent.node)]))


def container_title(spec: JobSpec) -> str:
    """The name of one node's container in messages, at the start of a sentence."""
    whose = spec.job_id if spec.agent.nodes == 1 else f"node {spec.agent.node} of {spec.job_id}"
    return f"The container of {whose}"


def network_of(spec: JobSpec) -> str | None:
    """The name of the job's own network for its nodes; None if there is one node."""
    return None if spec.agent.nodes == 1 else object_name(spec)


def _labels(spec: JobSpec, owner: Mapping[str, str]) -> dict[str, str]:
    return {**spec.labels, **owner}


def volume_names(spec: JobSpec) -> tuple[str, ...]:
    """The names of the volumes that all nodes of a job share: its files, and the files of its tests.

    Nameless ones would go with their container, but not if another client removes it (``docker rm`` leaves them).
    """
    return object_name(spec), object_name(spec, "shared")


def network_request(spec: JobSpec, owner: Mapping[str, str]) -> dict[str, Any]:
    """The request for a network of a job's nodes alone."""
    return {
        "name": object_name(spec),
        "driver": "bridge",
        "check_duplicate": True,
        # No route to any other network. Without the option below, the host itself would still be reachable as the
        # gateway, with all that listens on it (Docker 20.10).
        "internal": True,
        "options": {"com.docker.network.bridge.inhibit_ipv4": "true"},
        "labels": _labels(spec, owner),
    }


def creation_request(spec: JobSpec, owner: Mapping[str, str], code_bytes: int, daemon: Daemon) -> dict[str, Any]:
    """The request for a container that may do nothing but compute."""
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
            # A crash of a rank would leave gigabytes wherever the host's kernel puts core files.
            # No limit of open files: one above the daemon's own fails a container (measured: rlimit type 7).
            # No limit of processes (nproc): it would count those of all the host's jobs, which share a user.
            "ulimits": [Ulimit(name="core", soft=0, hard=0)],
            **gpu_settings(spec),
        },
    }


def _seccomp(spec: JobSpec, daemon: Daemon) -> list[str]:
    """Our list in place of the daemon's; nothing if the daemon's is wanted, or if the kernel cannot filter."""
    if spec.seccomp == "default" or not daemon.has_seccomp:
        return []
    return [f"seccomp={json.dumps(json.loads(_SECCOMP.read_text(encoding='utf-8')))}"]


def _cpu_settings(ranks: int, daemon: Daemon) -> dict[str, int]:
    """A container's part of its host's CPUs: shares by its ranks, and a limit that always leaves some free.

    Shares bind only while others want the CPUs, so a job that runs alone is as fast as without. The limit is for what a
    test may start (a pool of threads for each CPU): a quarter of a larger host stays free for its daemon and for the
    orchestrator, but each rank has a CPU of its own wherever there are that many.
    """
    most = min(daemon.cpus, max(ranks, -(-daemon.cpus * 3 // 4)))
    limit = {"nano_cpus": most * 10**9} if daemon.limits_cpus else {}
    return {"cpu_shares": _SHARES_OF_RANK * ranks, **limit}


def _mounts(spec: JobSpec, owner: Mapping[str, str], code_bytes: int) -> list[Mount]:
    files, written = volume_names(spec)
    labels, limits = _labels(spec, owner), spec.resources
    return [
        _in_memory(files, ROOT, code_bytes + RESULTS_BYTES * spec.agent.nodes, labels, owner=0),
        _in_memory(written, f"{ROOT}/shared", limits.disk_bytes, labels, owner=USER),
    ]


def _in_memory(name: str, target: str, size: int, labels: Mapping[str, str], *, owner: int) -> Mount:
    """A volume of limited size in memory: few hosts can limit a volume on disk.

    It exists while a container that mounts it runs. Measured (Docker 20.10): as quick as a volume on the disk; a
    separate container that holds it would cost half a second.
    """
    options = {"type": "tmpfs", "device": "tmpfs", "o": f"size={size},mode=0755,uid={owner},gid={owner},nosuid,nodev"}
    return Mount(target, name, type="volume", labels=dict(labels), driver_config=DriverConfig("local", options))


def _network_settings(spec: JobSpec) -> dict[str, Any]:
    """No network for one node; else the job's, without resolution of any other name.

    Docker's own name server resolves the nodes. It would forward other names from the host, and so out of an internal
    network (CVE-2024-29018); at this address in the container no server listens. It then does not answer, and one
    second is the shortest timeout for that.
    """
    if spec.agent.nodes == 1:
        # Without this name gloo searches for the host's address for minutes.
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
    """The command line of a container after the interpreter: it waits for its files, and becomes the container init."""
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
    """The agent's variables in a container."""
    return {
        **_interfaces(spec.agent.nodes),
        # A user id without an entry in the password file has neither of these.
        "HOME": f"{ROOT}/shared",
        "USER": "allranks",
        "PYTHONDONTWRITEBYTECODE": "1",
        **{copy.target.name: f"{ROOT}/code/{copy.target}" for copy in spec.files if copy.target.parent == LISTS},
        **spec.environment,
        "PYTHONPATH": f"{ROOT}/agent:{ROOT}/project" if spec.python_path else f"{ROOT}/agent",
        RUN_VARIABLE: spec.run_id,
    }


def _interfaces(nodes: int) -> dict[str, str]:
    """The interfaces that ranks use: gloo and TensorPipe would not always choose the one that node names lead to."""
    if nodes == 1:
        return {"GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo"}
    return dict.fromkeys(("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), INTERFACE)


CDI_KIND = "nvidia.com/gpu"
"""The kind of GPUs in the specifications that NVIDIA's toolkit writes."""


def gpu_settings(spec: JobSpec) -> dict[str, Any]:
    """Settings that give a container exactly the GPUs of its job, by id; with a count the daemon would choose."""
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
    """The contents of the job's volume. Its root belongs to root, so each folder below carries the job's user."""
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

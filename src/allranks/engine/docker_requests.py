"""What the docker engine asks the daemon for: made of a job alone, and compared without any daemon."""

import re
from typing import Any

from docker.types import DeviceRequest, Mount

from allranks.engine.archive import ArchiveBuilder
from allranks.engine.ownership import HOST_LABEL, RUN_VARIABLE
from allranks.engine.spec import FileCopy, JobSpec

USER = 10001
"""User and group of every job: a number that no distribution gives to anybody."""

ROOT = "/job"
"""Where a job's volume is in its container."""

_NODE = "node0"


def creation_request(spec: JobSpec, host: str) -> dict[str, Any]:
    """What the daemon is asked to create: a container that may do nothing but compute.

    Args:
        spec: The job.
        host: This host's id, for the labels.
    """
    labels = {**spec.labels, HOST_LABEL: host}
    return {
        "image": spec.image,
        "entrypoint": ["python3"],
        "command": agent_arguments(),
        "hostname": _NODE,
        "user": f"{USER}:{USER}",
        "working_dir": f"{ROOT}/shared",
        "environment": container_environment(spec),
        "labels": labels,
        "stdin_open": True,
        "host_config": {
            "network_mode": "none",
            # Without this name gloo looks for the host's address for minutes.
            "extra_hosts": {_NODE: "127.0.0.1"},
            "mounts": [Mount(ROOT, "", type="volume", labels=labels)],
            "tmpfs": {"/tmp": "rw,nosuid,nodev,exec,mode=1777,size=1g"},  # noqa: S108 - the container's own
            "read_only": True,
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges"],
            "init": True,
            "pids_limit": spec.resources.pids,
            "mem_limit": spec.resources.memory_bytes,
            "memswap_limit": spec.resources.memory_bytes,
            "shm_size": spec.resources.shm_bytes,
            "log_config": {"type": "none"},
            **gpu_settings(spec),
        },
    }


def container_name(spec: JobSpec) -> str:
    """A name that tells a person in ``docker ps`` what it is, and that no other attempt has."""
    readable = re.sub(r"[^a-zA-Z0-9_.-]+", "-", spec.job_id)
    return f"allranks-{spec.run_id}-{readable}-{spec.attempt}"


def agent_arguments() -> list[str]:
    """The agent's command line in a container, after the interpreter."""
    folders = [item for name in ("code", "results", "shared") for item in (f"--{name}", f"{ROOT}/{name}")]
    return ["-m", "allranks.harness", "--config", f"{ROOT}/agent/config.json", *folders]


def container_environment(spec: JobSpec) -> dict[str, str]:
    """The agent's variables in a container."""
    return {
        "GLOO_SOCKET_IFNAME": "lo",
        "TP_SOCKET_IFNAME": "lo",
        # A user id without an entry in the password file has neither of these.
        "HOME": f"{ROOT}/shared",
        "USER": "allranks",
        "PYTHONDONTWRITEBYTECODE": "1",
        **spec.environment,
        "PYTHONPATH": f"{ROOT}/agent",
        RUN_VARIABLE: spec.run_id,
    }


CDI_KIND = "nvidia.com/gpu"
"""What NVIDIA's toolkit calls its GPUs in the specifications that it writes."""


def gpu_settings(spec: JobSpec) -> dict[str, Any]:
    """What gives a container exactly the GPUs of its job, by id; a count would be the daemon's choice."""
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


def job_archive(spec: JobSpec, package: tuple[FileCopy, ...]) -> bytes:
    """What goes into the job's volume. Its root stays root's, so each folder below carries the job's user."""
    archive = ArchiveBuilder(USER)
    for name in ("agent", "code", "results", "shared"):
        archive.add_folder(name)
    archive.add_bytes("agent/config.json", spec.agent.to_json().encode())
    archive.add_copies("agent", package)
    archive.add_copies("code", spec.files)
    archive.add_copies("results", spec.carried)
    return archive.finish()

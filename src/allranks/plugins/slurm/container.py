"""``[slurm] container``: the Python, the srun options and the mounts of a job in a container.

Here, a supervisor is the process that starts and watches the agent on a node (``agent/node_supervisor.py``); the agent
has a supervisor of its own, for its ranks. With Charliecloud, Apptainer and Docker, the node's supervisor starts the
agent in a container. pyxis is a plug-in of srun, so there the supervisor runs in the container, too, with the same
paths as outside.
"""

import sys
from pathlib import Path
from typing import Final

from allranks.engines.base import JobSpec
from allranks.engines.package import package_folder
from allranks.errors import EngineError
from allranks.plugins.slurm.agent import node_docker
from allranks.plugins.slurm.agent.node_container import AgentFolders

PYTHON: Final = "python3"
"""The interpreter in a container."""

SECCOMP: Final = package_folder() / "engines" / "seccomp.json"
"""Docker's seccomp profile for jobs; each rule gives its reason."""

_SEPARATORS: Final = frozenset(":,")


def agent_container(container: str | None, folders: AgentFolders) -> str:
    """The container that the supervisor starts its agent in; empty for none, or if the supervisor is in it as well.

    Raises:
        EngineError: No runtime can mount a folder of this name.
    """
    for folder in (folders.job, folders.code, folders.package) if container else ():
        if _SEPARATORS.intersection(str(folder)):
            msg = f"The folder {folder} cannot be mounted in a container."
            remedy = "Rename it, or remove container from [slurm]."
            raise EngineError(msg, why="Its path has a colon or a comma.", remedy=remedy)
    return "" if container is None or _is_pyxis(container) else container


def docker_options(container: str | None, spec: JobSpec, folder: Path) -> tuple[str, ...]:
    """A job's own options for ``docker run``; none for other runtimes.

    They name a copy of :data:`SECCOMP` in the job's folder. SLURM's limits do not apply to the daemon's containers, so
    the options repeat what is requested from SLURM.
    """
    if container is None or not container.startswith(f"{node_docker.RUNTIME}:"):
        return ()
    nodes = [spec.resources_on(node) for node in range(spec.agent.nodes)]
    memory = max(resources.memory_bytes for resources in nodes)
    options = (
        *(f"--label={name}={value}" for name, value in spec.labels.items()),
        *(f"--memory={memory}", f"--memory-swap={memory}"),
        f"--shm-size={max(resources.shm_bytes for resources in nodes)}",
        f"--pids-limit={max(resources.pids for resources in nodes)}",
        # Only the names: the supervisor's environment has the values, without variables that belong to the node.
        *(f"--env={name}" for name in spec.environment),
    )
    if spec.seccomp == "default":
        return options
    return (*options, f"--security-opt=seccomp={folder / SECCOMP.name}")


def supervisor_python(container: str | None, python: str) -> str:
    """The interpreter of the supervisors: the job's, or this process's if the job's is inside the container."""
    return python if container is None or _is_pyxis(container) else sys.executable


def step_options(container: str | None, folders: AgentFolders) -> tuple[str, ...]:
    """The srun options with which pyxis starts a step in a container, without the user's home."""
    if container is None or not _is_pyxis(container):
        return ()
    job, *others = folders.job, folders.code, folders.package
    mounts = ",".join((f"{job}:{job}", *(f"{folder}:{folder}:ro" for folder in others)))
    return (
        f"--container-image={container.partition(':')[2]}",
        f"--container-mounts={mounts}",
        f"--container-workdir={job}",
        "--no-container-mount-home",
        "--no-container-entrypoint",
    )


def _is_pyxis(container: str) -> bool:
    return container.startswith("pyxis:")

"""What ``[slurm] container`` changes in a job: its Python, its step, and what is mounted.

Charliecloud, Apptainer and Docker are entered on each node by the supervisor, for its agent alone. pyxis belongs to
srun, so the supervisor itself is inside, at the same paths as outside.
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
"""The system calls that a job may make in a container of Docker; each rule gives its reason."""

_SEPARATORS: Final = frozenset(":,")


def agent_container(container: str | None, folders: AgentFolders) -> str:
    """What the supervisor starts its agent in; empty for nothing, or if the supervisor is inside as well.

    Raises:
        EngineError: A folder has a name that no runtime can mount.
    """
    for folder in (folders.job, folders.code, folders.package) if container else ():
        if _SEPARATORS.intersection(str(folder)):
            msg = f"The folder {folder} cannot be mounted in a container."
            remedy = "Rename it, or take container out of [slurm]."
            raise EngineError(msg, why="Its name has a colon or a comma.", remedy=remedy)
    return "" if container is None or _is_of_srun(container) else container


def docker_options(container: str | None, spec: JobSpec, folder: Path) -> tuple[str, ...]:
    """A job's own options for ``docker run``; none for other runtimes.

    They name a copy of :data:`SECCOMP` in its folder. SLURM's limits do not bind the daemon's containers, so
    these have what SLURM is asked for.
    """
    if container is None or not container.startswith(f"{node_docker.RUNTIME}:"):
        return ()
    each = [spec.resources_on(node) for node in range(spec.agent.nodes)]
    memory = max(limits.memory_bytes for limits in each)
    options = (
        *(f"--label={name}={value}" for name, value in spec.labels.items()),
        *(f"--memory={memory}", f"--memory-swap={memory}"),
        f"--shm-size={max(limits.shm_bytes for limits in each)}",
        f"--pids-limit={max(limits.pids for limits in each)}",
        # By name alone: the supervisor has the values, and may leave out a variable that is the node's.
        *(f"--env={name}" for name in spec.environment),
    )
    if spec.seccomp == "default":
        return options
    return (*options, f"--security-opt=seccomp={folder / SECCOMP.name}")


def supervisor_python(container: str | None, python: str) -> str:
    """The interpreter of the supervisors: this process's, which nodes need to see, if the job's is in the container."""
    return python if container is None or _is_of_srun(container) else sys.executable


def step_options(container: str | None, folders: AgentFolders) -> tuple[str, ...]:
    """The options by which pyxis starts a step in a container, without the user's home (``srun --help`` there)."""
    if container is None or not _is_of_srun(container):
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


def _is_of_srun(container: str) -> bool:
    return container.startswith("pyxis:")

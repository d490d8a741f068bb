"""What ``[slurm] container`` changes in a job: its Python, its step, and what is mounted.

Charliecloud and Apptainer are entered on each node by the supervisor, for its agent alone. pyxis belongs to srun, so
the supervisor itself is inside, at the same paths as outside.
"""

import sys
from typing import Final

from allranks.errors import EngineError
from allranks.harness.node_container import AgentFolders

PYTHON: Final = "python3"
"""The interpreter in a container."""

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

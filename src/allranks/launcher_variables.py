"""The variables by which launchers say which rank a process is, in a world of how many."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

IN_A_JOB: Final = "ALLRANKS_GPU_COUNT"
"""A variable that every process of a job has."""


@dataclass(frozen=True)
class LauncherVariables:
    """The names of one launcher's variables.

    Attributes:
        launcher: The launcher, in words.
        rank: The number of the process.
        world_size: The number of processes.
        local_rank: The number of the process on its node.
        local_world_size: The number of processes on its node.
    """

    launcher: str
    rank: str
    world_size: str
    local_rank: str
    local_world_size: str


OWN: Final = LauncherVariables("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""Those of torch, which the agent sets for its ranks, too."""

LAUNCHERS: Final = (
    OWN,
    # SLURM's batch script and allocation have no SLURM_STEP_NUM_TASKS above 1: only the tasks of a step do.
    LauncherVariables("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS"),
    LauncherVariables(
        "mpirun (Open MPI)",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    LauncherVariables("mpiexec (PMI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


def variables_for(environ: Mapping[str, str]) -> LauncherVariables:
    """The variables that count for this process: torch's own where they are set, or where an agent runs."""
    if OWN.rank in environ or OWN.world_size in environ or "ALLRANKS_GANG" in environ:
        return OWN
    others = (each for each in LAUNCHERS if environ.get(each.rank) and environ.get(each.world_size, "1") != "1")
    return next(others, OWN)

"""The variables by which launchers say which rank a process is, in a world of how many."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

IN_A_JOB: Final = "ALLRANKS_GPU_COUNT"
"""A variable that every process of a job has."""


@dataclass(frozen=True)
class LauncherVariables:
    """The names of one launcher's variables."""

    launcher: str
    rank: str  # the number of the process
    world_size: str  # the number of processes
    local_rank: str  # the number of the process on its node
    local_world_size: str  # the number of processes on its node
    # Those that have one value in all processes of a launch, and another in most other launches.
    launch: tuple[str, ...] = ()


OWN: Final = LauncherVariables(
    "torchrun",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"),
)
"""Those of torch, which the agent sets for its ranks, too."""

LAUNCHERS: Final = (
    OWN,
    # SLURM's batch script and allocation have no SLURM_STEP_NUM_TASKS above 1: only the tasks of a step do.
    LauncherVariables(
        "srun",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_LOCALID",
        "SLURM_STEP_NUM_TASKS",
        ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ),
    LauncherVariables(
        "mpirun (Open MPI)",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    ),
    LauncherVariables("mpiexec (PMI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


def variables_for(environ: Mapping[str, str]) -> LauncherVariables:
    """The variables that count for this process: torch's own where they are set, or where an agent runs."""
    if OWN.rank in environ or OWN.world_size in environ or "ALLRANKS_GANG" in environ:
        return OWN
    others = (each for each in LAUNCHERS if environ.get(each.rank) and environ.get(each.world_size, "1") != "1")
    return next(others, OWN)


@dataclass(frozen=True, kw_only=True)
class LaunchedProcess:
    """This process among those of its launcher."""

    launcher: str
    rank: int
    world_size: int
    local_rank: int | None  # its number on its node; None if the launcher does not say it
    launch: str  # a name that all processes of the launch share, for a file


def launched_process(environ: Mapping[str, str]) -> LaunchedProcess | None:
    """What a launcher says of this process; None if none has started it, or what it says makes no sense."""
    for each in LAUNCHERS:
        rank, size, local = (_count(environ, name) for name in (each.rank, each.world_size, each.local_rank))
        if rank is not None and size is not None and rank < size:
            shared = "\n".join(f"{name}={environ.get(name, '')}" for name in (*each.launch, each.world_size))
            launch = hashlib.sha256(f"{each.launcher}\n{shared}".encode("utf-8", "surrogateescape")).hexdigest()[:12]
            return LaunchedProcess(launcher=each.launcher, rank=rank, world_size=size, local_rank=local, launch=launch)
    return None


_OF_LAUNCHERS: Final = ("SLURM_", "OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDRA_", "MPI_LOCAL")


def outside_of_launchers(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables without those of SLURM and MPI: each rank of a job would take itself for the one process they name."""
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(_OF_LAUNCHERS) or name in {"SLURM_CONF", "SLURM_LAUNCH_NODE_IPADDR"}
    }


def _count(environ: Mapping[str, str], name: str) -> int | None:
    value = environ.get(name, "")
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 10 else None

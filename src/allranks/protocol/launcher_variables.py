"""The environment variables in which torchrun, srun and MPI (here called launchers) pass a process its rank."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

IN_A_JOB: Final = "ALLRANKS_GPU_COUNT"
"""A variable that is set in every process of a job."""


@dataclass(frozen=True)
class LauncherVariables:
    """The names of one launcher's variables."""

    launcher: str  # as in messages
    rank: str
    world_size: str
    local_rank: str
    local_world_size: str
    launch: tuple[str, ...] = ()  # variables that are equal in all processes of a launch, and usually differ in others


TORCHRUN: Final = LauncherVariables(
    "torchrun",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"),
)
"""The variables that torch reads. The agent sets them for its ranks, too."""

RANK_VARIABLES: Final = re.compile(
    r"((LOCAL|GROUP|ROLE|NODE)_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|TORCHELASTIC_(?!ETCD_).*", re.DOTALL
)
"""The variables of torch that identify a rank and its rendezvous; users set ``TORCHELASTIC_ETCD_*``."""

LAUNCHERS: Final = (
    TORCHRUN,
    # SLURM_STEP_NUM_TASKS exceeds 1 only in the tasks of a step, not in a batch script or an allocation.
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


def variables_of_rank(rank: int, world_size: int, local_rank: int, local_world_size: int) -> dict[str, str]:
    """The variables from which torch reads the rank of a process."""
    names = TORCHRUN.rank, TORCHRUN.world_size, TORCHRUN.local_rank, TORCHRUN.local_world_size
    return dict(zip(names, map(str, (rank, world_size, local_rank, local_world_size)), strict=True))


def variables_for(environ: Mapping[str, str]) -> LauncherVariables:
    """The variables that apply to this process: torch's own if they are set or an agent runs it."""
    if TORCHRUN.rank in environ or TORCHRUN.world_size in environ or "ALLRANKS_GANG" in environ:
        return TORCHRUN
    others = (names for names in LAUNCHERS if environ.get(names.rank) and environ.get(names.world_size, "1") != "1")
    return next(others, TORCHRUN)


@dataclass(frozen=True, kw_only=True)
class LaunchedProcess:
    """This process, according to its launcher."""

    launcher: str
    rank: int
    world_size: int
    local_rank: int | None  # None if the launcher does not set it
    launch: str  # an id that all processes of the launch share; valid in a file name


def launched_process(environ: Mapping[str, str]) -> LaunchedProcess | None:
    """Read the variables of this process's launcher; None if it has no launcher, or the values are inconsistent."""
    for names in LAUNCHERS:
        rank, size, local = (_count(environ, name) for name in (names.rank, names.world_size, names.local_rank))
        if rank is not None and size is not None and rank < size:
            shared = "\n".join(f"{name}={environ.get(name, '')}" for name in (*names.launch, names.world_size))
            launch = hashlib.sha256(f"{names.launcher}\n{shared}".encode("utf-8", "surrogateescape")).hexdigest()[:12]
            return LaunchedProcess(launcher=names.launcher, rank=rank, world_size=size, local_rank=local, launch=launch)
    return None


_PREFIXES: Final = ("SLURM_", "OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDRA_", "MPI_LOCAL")


def outside_of_launchers(environ: Mapping[str, str]) -> dict[str, str]:
    """Remove the variables of SLURM and MPI: all ranks of a job would inherit the same rank from them."""
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(_PREFIXES) or name in {"SLURM_CONF", "SLURM_LAUNCH_NODE_IPADDR"}
    }


def _count(environ: Mapping[str, str], name: str) -> int | None:
    value = environ.get(name, "")
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 10 else None

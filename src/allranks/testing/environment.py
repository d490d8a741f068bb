"""The environment of a rank: its number, world size, backend and GPUs.

The agent sets environment variables for each rank that it forks; torchrun, srun and mpirun set their own. If none
are set, the process is the only rank of a world of size 1, with the backend gloo.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from allranks.agent.environment_skips import EnvironmentSkip
from allranks.protocol.launcher_variables import TORCHRUN, variables_for
from allranks.protocol.skip_codes import SkipCode, multi_gpu


@dataclass(frozen=True, kw_only=True)
class RankEnvironment:
    """The values of a cell, and a rank's position in it.

    Attributes:
        rank: This rank, from 0.
        world_size: The number of ranks of the cell. If tests launch ranks themselves, the number that they may start.
        local_rank: The index of this rank on its node, from 0.
        local_world_size: The number of ranks on this node.
        backend: The cell's backend, in lower case.
        init_method: The cell's init method: ``env``, ``tcp`` or ``file``.
        gpu_count: The number of GPUs of the cell, on all of its nodes together.
        gang: The number of this rank's gang in its job, from 1; 0 without an agent.
        shared: A folder that all ranks of the gang share; None without an agent.
        launcher: The program that started this rank, for messages.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    backend: str
    init_method: str
    gpu_count: int
    gang: int = 0
    shared: Path | None = None
    launcher: str = field(default="", compare=False)

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Read the variables that the agent, torchrun, srun or mpirun set for this process.

        Args:
            environ: The environment variables.

        Returns:
            The environment of this rank.

        Raises:
            LauncherError: A variable is not a number, or the variables contradict each other.
        """
        names = variables_for(environ)
        rank = _number(environ, names.rank, 0)
        # If tests launch ranks themselves, the launching process has no WORLD_SIZE: it is not a rank.
        world_size = _number(environ, names.world_size, _number(environ, "ALLRANKS_WORLD_SIZE", 1))
        if not rank < world_size:
            msg = f"{names.rank} is {rank}, which must be below the world size, {world_size} ({names.world_size})"
            raise LauncherError(msg)
        shared = environ.get("ALLRANKS_SHARED")
        return cls(
            rank=rank,
            world_size=world_size,
            local_rank=_number(environ, names.local_rank, rank),
            local_world_size=_slurm_local_world_size(environ) or _number(environ, names.local_world_size, world_size),
            backend=environ.get("BACKEND", "gloo").lower(),
            init_method=environ.get("INIT_METHOD", "env"),
            gpu_count=_number(environ, "ALLRANKS_GPU_COUNT", 0),
            gang=_number(environ, "ALLRANKS_GANG", 0),
            shared=Path(shared) if shared else None,
            launcher="the environment"
            if names is TORCHRUN and "TORCHELASTIC_RUN_ID" not in environ
            else names.launcher,
        )

    @property
    def device_type(self) -> str:
        """The type of device for tensors: ``"cuda"`` if the cell has GPUs or its backend is NCCL, else ``"cpu"``."""
        return "cuda" if self.backend == "nccl" or self.gpu_count else "cpu"


class LauncherError(ValueError):
    """The environment variables of this rank are invalid or contradict each other; the message names them."""


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    if text and not (text.isdecimal() and text.isascii()):
        msg = f"{name} is {text!r}; it must be a whole number, at least 0"
        raise LauncherError(msg)
    return int(text) if text else default


_TASKS: Final = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def _slurm_local_world_size(environ: Mapping[str, str]) -> int | None:
    """The number of ranks on this node, from SLURM's list: ``2(x3),1`` means 2 on three nodes, and 1 on the fourth."""
    if variables_for(environ).launcher != "srun":
        return None
    counts = [
        int(tasks)
        for tasks, times in _TASKS.findall(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
        for _ in range(int(times or 1))
    ]
    node = _number(environ, "SLURM_NODEID", 0)
    return counts[node] if node < len(counts) else None


ONE_RANK_EACH = frozenset({"nccl", "ucc", "xccl", "hccl"})
"""Backends whose ranks cannot share a GPU."""


def rank_to_gpus(world_size: int, backend: str | None = None, *, gpus_per_rank: int | None = 1) -> dict[int, list[int]]:
    """Assign the GPUs of one host to its ranks.

    All ranks get the same number of GPUs. If there are enough, no two ranks share a GPU. If there are too few, the test
    is skipped for backends that need one GPU per rank, such as NCCL. For other backends, ranks share the GPUs, or get
    none if the host has none.

    Args:
        world_size: The number of ranks on this host.
        backend: The backend of the test; None for a backend whose ranks can share GPUs.
        gpus_per_rank: The number of GPUs per rank; None divides the GPUs evenly.

    Returns:
        The indices of each rank's GPUs, by rank.

    Raises:
        EnvironmentSkip: The backend needs one GPU per rank, and there are too few.
        ValueError: ``world_size`` or ``gpus_per_rank`` is less than 1.
    """
    if world_size < 1 or (gpus_per_rank is not None and gpus_per_rank < 1):
        msg = f"world_size ({world_size}) and gpus_per_rank ({gpus_per_rank}) must be at least 1"
        raise ValueError(msg)
    present = accelerator_count()
    per_rank = gpus_per_rank if gpus_per_rank is not None else max(present // world_size, 1)
    needed = world_size * per_rank
    if needed <= present:
        return {rank: list(range(rank * per_rank, (rank + 1) * per_rank)) for rank in range(world_size)}
    if backend is not None and backend.lower() in ONE_RANK_EACH:
        code = multi_gpu(needed) if present else SkipCode.NO_CUDA
        raise EnvironmentSkip(code, f"{present} of {needed}" if present else "", needed)
    count = min(per_rank, present)
    return {rank: [(rank * per_rank + i) % present for i in range(count)] for rank in range(world_size)}


def accelerator_count() -> int:
    """The number of visible accelerators; does not initialize CUDA, so that forks can still use it."""
    import torch

    return int(torch.cuda.device_count() or torch.xpu.device_count())

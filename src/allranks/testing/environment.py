"""The environment of a rank process: its place in the world, and its GPUs.

The agent sets these variables for each rank that it forks; torchrun, srun and mpirun set theirs. Where none is set, the
process is the only rank of a world of one, over gloo.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from allranks.agent.environment_skips import EnvironmentSkip
from allranks.protocol.launcher_variables import OWN, variables_for
from allranks.protocol.skip_codes import SkipCode, multi_gpu


@dataclass(frozen=True, kw_only=True)
class RankEnvironment:
    """One rank's place in its cell.

    Args:
        rank: This rank, from 0.
        world_size: The number of ranks of the cell; if tests launch ranks themselves, how many they may start.
        local_rank: This rank's place on its own node, from 0.
        local_world_size: The number of ranks on this node.
        backend: The cell's backend, in lower case.
        init_method: How the ranks meet: ``env``, ``tcp`` or ``file``.
        gpu_count: The number of GPUs of the cell, over all of its nodes.
        gang: Number of this rank's gang in its job, from 1; 0 without an agent.
        shared: The gang's own folder, the same for all of its ranks; None without an agent.
        launcher: What started this rank, in words.
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

        Raises:
            LauncherError: They contradict each other.
        """
        names = variables_for(environ)
        rank = _number(environ, names.rank, 0)
        # In a suite whose tests launch ranks, their process has no WORLD_SIZE, which would make it a rank.
        world_size = _number(environ, names.world_size, _number(environ, "ALLRANKS_WORLD_SIZE", 1))
        if not rank < world_size:
            msg = f"{names.rank} is {rank}, and {names.world_size} is {world_size}: ranks count from 0, and are fewer"
            raise LauncherError(msg)
        shared = environ.get("ALLRANKS_SHARED")
        return cls(
            rank=rank,
            world_size=world_size,
            local_rank=_number(environ, names.local_rank, rank),
            local_world_size=_of_slurm_node(environ) or _number(environ, names.local_world_size, world_size),
            backend=environ.get("BACKEND", "gloo").lower(),
            init_method=environ.get("INIT_METHOD", "env"),
            gpu_count=_number(environ, "ALLRANKS_GPU_COUNT", 0),
            gang=_number(environ, "ALLRANKS_GANG", 0),
            shared=Path(shared) if shared else None,
            launcher="the environment" if names is OWN and "TORCHELASTIC_RUN_ID" not in environ else names.launcher,
        )

    @property
    def device_type(self) -> str:
        """Where this rank's tensors are: ``"cuda"`` in a cell that has GPUs or runs NCCL, else ``"cpu"``."""
        return "cuda" if self.backend == "nccl" or self.gpu_count else "cpu"


class LauncherError(ValueError):
    """The variables that describe this rank contradict each other; the message names them."""


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    if text and not (text.isdecimal() and text.isascii()):
        msg = f"{name} is {text!r}, which is not a number from 0"
        raise LauncherError(msg)
    return int(text) if text else default


_TASKS: Final = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def _of_slurm_node(environ: Mapping[str, str]) -> int | None:
    """The ranks of this node as SLURM's ``2(x3),1`` has it: two on each of three nodes, and one on the fourth."""
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
    """The GPUs of each rank of one host.

    Every rank gets the same number of GPUs, and no two ranks share one as long as there are enough. If there are too
    few, a backend that needs a GPU per rank skips the test; with any other backend, ranks share GPUs in turn, and get
    none if the host has none.

    Args:
        world_size: The number of ranks on this host.
        backend: The backend of the test; None for one that can share GPUs.
        gpus_per_rank: The number of GPUs per rank; None for as many as can be divided evenly.

    Returns:
        For each rank, the indices of its GPUs.

    Raises:
        EnvironmentSkip: There are fewer GPUs than the ranks need; has torch's code for that number.
        ValueError: ``world_size`` or ``gpus_per_rank`` is less than 1.
    """
    if world_size < 1 or (gpus_per_rank is not None and gpus_per_rank < 1):
        msg = f"{world_size} ranks with {gpus_per_rank} GPUs each are impossible: give numbers from 1"
        raise ValueError(msg)
    present = accelerator_count()
    each = gpus_per_rank if gpus_per_rank is not None else max(present // world_size, 1)
    if world_size * each <= present:
        return {rank: list(range(rank * each, (rank + 1) * each)) for rank in range(world_size)}
    if backend is not None and backend.lower() in ONE_RANK_EACH:
        code = multi_gpu(world_size * each) if present else SkipCode.NO_CUDA
        raise EnvironmentSkip(code, f"{present} of {world_size * each}" if present else "", world_size * each)
    return {rank: _shared(rank * each, min(each, present), present) for rank in range(world_size)}


def _shared(first: int, count: int, present: int) -> list[int]:
    return [(first + place) % present for place in range(count)]


def accelerator_count() -> int:
    """The number of visible accelerators; does not initialise CUDA, so that forks can still use it."""
    import torch

    return int(torch.cuda.device_count() or torch.xpu.device_count())

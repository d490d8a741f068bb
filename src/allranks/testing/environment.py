"""What a rank process is told about itself, read from its environment.

The agent sets these variables for each rank it forks. Under a plain pytest none is set, and the process is then what it
looks like: the only rank of a world of one, over gloo.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, kw_only=True)
class RankEnvironment:
    """One rank's place in its cell.

    Args:
        rank: This rank, from 0.
        world_size: How many ranks the cell has.
        local_rank: This rank's place on its own node, from 0.
        local_world_size: How many ranks this node has.
        backend: The cell's backend, in lower case.
        init_method: How the ranks meet: ``env``, ``tcp`` or ``file``.
        gpu_count: The cell's GPUs, over all of its nodes.
        gang: Number of this rank's gang in its job, from 1; 0 without an agent.
        shared: The gang's own folder, the same for all of its ranks; None without an agent.
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

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Read what the agent, or torchrun, told this process."""
        rank = int(environ.get("RANK", "0"))
        world_size = int(environ.get("WORLD_SIZE", "1"))
        shared = environ.get("ALLRANKS_SHARED")
        return cls(
            rank=rank,
            world_size=world_size,
            local_rank=int(environ.get("LOCAL_RANK", rank)),
            local_world_size=int(environ.get("LOCAL_WORLD_SIZE", world_size)),
            backend=environ.get("BACKEND", "gloo").lower(),
            init_method=environ.get("INIT_METHOD", "env"),
            gpu_count=int(environ.get("ALLRANKS_GPU_COUNT", "0")),
            gang=int(environ.get("ALLRANKS_GANG", "0")),
            shared=Path(shared) if shared else None,
        )

"""A process group beside RPC, for tests that use ``torch.distributed.barrier``."""

from datetime import timedelta

import torch.distributed as dist

_TIMEOUT = timedelta(minutes=5)


def initialize_pg(init_method: str, rank: int, world_size: int, *, timeout: timedelta = _TIMEOUT) -> None:
    """Make a default process group over gloo, unless there is one.

    Args:
        init_method: Where its ranks meet; another place than that of the RPC workers.
        rank: This rank.
        world_size: How many ranks there are.
        timeout: How long meeting, and each collective, may take.
    """
    if not dist.is_initialized():
        dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=world_size, timeout=timeout)

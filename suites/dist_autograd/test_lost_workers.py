"""Backward passes to a worker that is gone: an error, in time."""

import pytest
import torch
from torch.distributed import rpc

from allranks.testing import (
    FileBarrier,
    require_world_size,
    wait_until_node_failure,
    with_rpc,
    worker_name,
)

from . import engine
from .calls import LIMIT, synchronously
from .operands import dense, total
from .remote_work import add_at_end


@require_world_size(2)
@with_rpc(clean_shutdown=False, rpc_timeout=5)
def test_callee_is_gone(rank: int, world_size: int, file_barrier: FileBarrier) -> None:
    """Each worker of an even rank called the next one, and all others leave."""
    with engine.context() as context:
        root = total(synchronously(worker_name((rank + 1) % world_size), torch.add, (dense(0), dense(1))))
        file_barrier()  # all calls have been answered
        if rank % 2 == 0 and rank + 1 < world_size:
            wait_until_node_failure(rank + 1, timeout=LIMIT)
            with pytest.raises(RuntimeError):
                engine.backward(context, [root])
        elif rank % 2:
            rpc.shutdown(graceful=False)
    file_barrier()


@require_world_size(3)
@with_rpc(clean_shutdown=False, rpc_timeout=5)
def test_last_worker_of_a_chain_is_gone(rank: int, file_barrier: FileBarrier) -> None:
    """The worker between cannot go on, and its error reaches the first."""
    with engine.context() as context:
        if rank == 0:
            path = [worker_name(2)]
            root = total(synchronously(worker_name(1), add_at_end, (dense(0), dense(1), path)))
        file_barrier()
        if rank == 2:
            rpc.shutdown(graceful=False)
        elif rank == 0:
            wait_until_node_failure(2, timeout=LIMIT)
            with pytest.raises(RuntimeError, match="Error on Node 1"):
                engine.backward(context, [root])
    file_barrier()

"""One rank returns before the collective that its peer waits in."""

import torch
import torch.distributed as dist

FAULT = {
    "world_size": 2,
    "test": "test_fault",
    "limits": {"process_group": 2, "test": 6},
    "verdict": ("failure", "failed"),
    "leading": 0,
    "ranks": ["failed", "passed"],
    "words": ["rank 0 failed", "imed out"],
    "seconds": 4,
}


def test_fault(rank):
    if rank == 1:
        return
    dist.all_reduce(torch.ones(1))


def test_after(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

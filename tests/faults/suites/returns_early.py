"""One rank returns before the collective that its peer waits in."""

import torch
import torch.distributed as dist

FAULT = {
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

"""One rank raises KeyboardInterrupt while its peer waits for it."""

import torch
import torch.distributed as dist

FAULT = {
    "verdict": ("error", "crashed"),
    "leading": 1,
    "ranks": ["aborted", "crashed"],
    "words": ["rank 1", "KeyboardInterrupt"],
    "seconds": 3,
}


def test_fault(rank):
    if rank == 1:
        raise KeyboardInterrupt
    dist.all_reduce(torch.ones(1))

"""One rank calls sys.exit(0) while its peer waits for it."""

import sys

import torch
import torch.distributed as dist

FAULT = {
    "world_size": 2,
    "test": "test_fault",
    "verdict": ("error", "crashed"),
    "leading": 1,
    "ranks": ["aborted", "crashed"],
    "words": ["rank 1", "SystemExit: 0"],
    "seconds": 3,
}


def test_fault(rank):
    if rank == 1:
        sys.exit(0)
    dist.all_reduce(torch.ones(1))


def test_after(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

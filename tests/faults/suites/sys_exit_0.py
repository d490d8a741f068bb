"""One rank calls sys.exit(0) while its peer waits for it."""

import sys

import torch
import torch.distributed as dist

FAULT = {
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

"""Two ranks of four fail, half a second apart: the first in time leads, not the lowest."""

import time

import torch
import torch.distributed as dist

FAULT = {
    "world_size": 4,
    "verdict": ("failure", "failed"),
    "leading": 3,
    "ranks": ["aborted", "failed", "aborted", "failed"],
    "words": ["rank 3 failed", "the first cause"],
    "seconds": 5.5,  # the grace of the peers, and the stacks of three
}


def test_fault(rank):
    if rank == 3:
        msg = "the first cause"
        raise ValueError(msg)
    if rank == 1:
        time.sleep(0.5)
        msg = "the second one"
        raise ValueError(msg)
    dist.all_reduce(torch.ones(1))

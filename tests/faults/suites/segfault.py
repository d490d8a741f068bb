"""One rank reads where no memory is."""

import ctypes

import torch
import torch.distributed as dist

FAULT = {
    "verdict": ("error", "crashed"),
    "leading": 0,
    "ranks": ["crashed", "failed"],
    "words": ["rank 0 was killed by SIGSEGV"],
    "seconds": 2,
}


def test_fault(rank):
    if rank == 0:
        ctypes.string_at(0)
    dist.all_reduce(torch.ones(1))

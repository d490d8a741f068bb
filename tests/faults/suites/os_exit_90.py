"""One rank exits with code 90 during the test, which is none of torch's skips."""

import os

import torch
import torch.distributed as dist

FAULT = {
    "verdict": ("error", "crashed"),
    "leading": 1,
    "ranks": ["failed", "crashed"],
    "words": ["rank 1 exited with code 90 during the test"],
    "seconds": 2,
}


def test_fault(rank):
    if rank == 1:
        os._exit(90)
    dist.all_reduce(torch.ones(1))

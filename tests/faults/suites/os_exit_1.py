"""One rank exits with code 1 during the test."""

import os

import torch
import torch.distributed as dist

FAULT = {
    "verdict": ("error", "crashed"),
    "leading": 1,
    "ranks": ["failed", "crashed"],
    "words": ["rank 1 exited with code 1 during the test; it was in suite/test_os_exit_1.py:19 in test_fault"],
    "seconds": 2,
}


def test_fault(rank):
    if rank == 1:
        os._exit(1)
    dist.all_reduce(torch.ones(1))

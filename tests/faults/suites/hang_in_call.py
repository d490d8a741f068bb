"""One rank of four hangs, and its peers run into the time limit of their collective: the one that hangs leads."""

import time

import torch
import torch.distributed as dist

FAULT = {
    "world_size": 4,
    "limits": {"process_group": 2, "test": 6},
    "verdict": ("error", "timed_out"),
    "leading": 2,
    "ranks": ["failed", "failed", "timed_out", "failed"],
    "words": ["rank 2 timed out", "waited for it", "test_hang_in_call.py", "in hang"],
    "seconds": 6,
}


def hang():
    time.sleep(3600)


def test_fault(rank):
    if rank == 2:
        hang()
    dist.all_reduce(torch.ones(1))

"""One rank skips by an exit code of torch's table, and its peer waits for it in a collective."""

import os

import torch
import torch.distributed as dist

FAULT = {
    "verdict": ("error", "ranks disagree"),
    "ranks": ["failed", "skipped"],
    "words": ["1 skipped"],
    "seconds": 8,
}


def test_fault(rank):
    if rank == 1:
        os._exit(77)
    dist.all_reduce(torch.ones(1))

"""One rank closes every descriptor that it has, those of the back end too, and lives on where the back end lets it."""

import os
import time

import torch
import torch.distributed as dist

FAULT = {
    "verdict": ("error", "crashed"),
    "leading": 1,
    "ranks": ["failed|aborted", "crashed"],
    "words": ["rank 1"],
    "undetermined": "the back end may abort the process when its own descriptors are gone",
    "seconds": 5,
}


def test_fault(rank):
    if rank == 1:
        os.closerange(0, 4096)
        time.sleep(3600)
    dist.all_reduce(torch.ones(1))

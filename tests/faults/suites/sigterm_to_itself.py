"""One rank sends itself SIGTERM while its peer waits for it."""

import os
import signal

import torch
import torch.distributed as dist

FAULT = {
    "init_method": "env",
    "verdict": ("error", "crashed"),
    "leading": 1,
    "ranks": ["failed", "crashed"],
    "words": ["rank 1 was killed by SIGTERM"],
    "seconds": 5,  # it might have been the job's end
}


def test_fault(rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    dist.all_reduce(torch.ones(1))

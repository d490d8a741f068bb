"""One rank sends itself SIGKILL while its peer waits for it."""

import os
import signal

import torch
import torch.distributed as dist

FAULT = {
    "init_method": "file",
    "verdict": ("error", "crashed"),
    "leading": 1,
    "ranks": ["failed", "crashed"],
    "words": ["rank 1 was killed by SIGKILL"],
    "seconds": 2,
}


def test_fault(rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))

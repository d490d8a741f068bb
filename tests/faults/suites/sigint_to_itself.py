"""One rank sends itself SIGINT while its peer waits for it."""

import os
import signal

import torch
import torch.distributed as dist

FAULT = {
    "init_method": "tcp",
    "verdict": ("error", "crashed"),
    "leading": 1,
    "ranks": ["aborted", "crashed"],
    "words": ["rank 1", "KeyboardInterrupt"],
    "seconds": 4,
}


def test_fault(rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGINT)
    dist.all_reduce(torch.ones(1))

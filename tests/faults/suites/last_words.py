"""One rank prints without a newline and is killed: its words are kept."""

import os
import signal

import torch
import torch.distributed as dist

FAULT = {
    "verdict": ("error", "crashed"),
    "leading": 1,
    "ranks": ["failed", "crashed"],
    "words": ["rank 1 was killed by SIGKILL"],
    "output": ["last words"],
    "seconds": 2,
}


def test_fault(rank):
    if rank == 1:
        os.write(1, b"last words")
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))

"""One rank stops itself, and its peer waits for it in a collective."""

import os
import signal

import torch
import torch.distributed as dist

FAULT = {
    "limits": {"process_group": 2, "test": 6},
    "verdict": ("error", "timed_out"),
    "leading": 1,
    "ranks": ["failed", "timed_out"],
    "words": ["rank 1 timed out", "SIGSTOP"],
    "seconds": 6,
}


def test_fault(rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.ones(1))

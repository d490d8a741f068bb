"""One rank kills the other: the one that was killed leads."""

import os
import signal
import time

import torch
import torch.distributed as dist

FAULT = {
    "verdict": ("error", "crashed"),
    "leading": 1,
    "ranks": ["passed", "crashed"],
    "words": ["rank 1 was killed by SIGKILL"],
    "seconds": 2,
}


def test_fault(rank):
    pids = [torch.zeros(1, dtype=torch.int64) for _ in range(2)]
    dist.all_gather(pids, torch.tensor([os.getpid()]))
    if rank == 1:
        time.sleep(3600)
    os.kill(int(pids[1]), signal.SIGKILL)

"""One rank prints without a newline and is killed: its words are kept."""

import os
import signal

import torch
import torch.distributed as dist

FAULT = {
    "world_size": 2,
    "test": "test_fault",
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


def test_after(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

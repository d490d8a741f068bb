"""One rank sends itself SIGKILL while its peer waits for it."""

import os
import signal

import torch
import torch.distributed as dist

FAULT = {
    "world_size": 2,
    "test": "test_fault",
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


def test_after(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

"""One rank registers an exit handler that never ends: ranks leave without exit handlers, so it is never called."""

import atexit
import time

import torch
import torch.distributed as dist

FAULT = {
    "world_size": 2,
    "test": "test_fault",
    "verdict": ("passed", ""),
    "ranks": ["passed", "passed"],
    "exit_code": 0,
    "isolation": "test",
    "seconds": 2,
}


def test_fault(rank):
    if rank == 1:
        atexit.register(time.sleep, 3600)


def test_after(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

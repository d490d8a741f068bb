"""One rank closes standard output and standard error, and then passes."""

import os

import torch
import torch.distributed as dist

FAULT = {
    "world_size": 2,
    "test": "test_fault",
    "verdict": ("passed", ""),
    "ranks": ["passed", "passed"],
    "exit_code": 0,
    "seconds": 2,
}


def test_fault(rank):
    if rank == 1:
        os.close(1)
        os.close(2)


def test_after(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

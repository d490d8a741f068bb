"""One rank may write no file any more: what it reports needs none."""

import resource

import torch
import torch.distributed as dist

FAULT = {
    "world_size": 2,
    "test": "test_fault",
    "verdict": ("passed", ""),
    "ranks": ["passed", "passed"],
    "exit_code": 0,
    "seconds": 3,
}


def test_fault(rank):
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def test_after(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

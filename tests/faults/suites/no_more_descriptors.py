"""One rank may open no file any more, and passes."""

import resource

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
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


def test_after(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

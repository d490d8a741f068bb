"""A test destroys the process group: the next test gets a fresh gang with a group of its own."""

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


def test_fault():
    dist.destroy_process_group()


def test_after(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

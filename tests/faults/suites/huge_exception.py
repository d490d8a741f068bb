"""One rank raises an exception with a message of 50 MB."""

import torch
import torch.distributed as dist

FAULT = {
    "world_size": 2,
    "test": "test_fault",
    "verdict": ("failure", "failed"),
    "leading": 1,
    "ranks": ["passed", "failed"],
    "words": ["rank 1 failed", "ValueError: start"],
    "seconds": 8,
}


def test_fault(rank):
    if rank == 1:
        raise ValueError("start" + "x" * 50_000_000)


def test_after(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

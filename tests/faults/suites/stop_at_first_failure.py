"""One rank fails under -x: the rest is not run, and says so."""

import torch
import torch.distributed as dist

FAULT = {
    "world_size": 2,
    "test": "test_fault",
    "pytest_args": ["-x"],
    "verdict": ("failure", "failed"),
    "leading": 1,
    "ranks": ["passed", "failed"],
    "words": ["rank 1 failed"],
    "others": {"test_after": "not run"},
    "seconds": 2,
}


def test_before():
    pass


def test_fault(rank):
    assert rank == 0


def test_after(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

"""One rank warns where warnings are errors."""

import warnings

import torch
import torch.distributed as dist

FAULT = {
    "world_size": 2,
    "test": "test_fault",
    "pytest_args": ["-W", "error::UserWarning"],
    "verdict": ("failure", "failed"),
    "leading": 1,
    "ranks": ["passed", "failed"],
    "words": ["rank 1 failed", "UserWarning: beware"],
    "seconds": 2,
}


def test_fault(rank):
    if rank == 1:
        warnings.warn("beware", stacklevel=1)


def test_after(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

"""One rank skips, and its peers pass."""

import pytest
import torch
import torch.distributed as dist

FAULT = {
    "world_size": 4,
    "test": "test_fault",
    "verdict": ("error", "ranks disagree"),
    "ranks": ["passed", "passed", "passed", "skipped"],
    "words": ["ranks disagree", "0-2 passed", "3 skipped", "not on rank 3"],
    "seconds": 2,
}


def test_fault(rank):
    if rank == 3:
        pytest.skip("not on rank 3")


def test_after(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

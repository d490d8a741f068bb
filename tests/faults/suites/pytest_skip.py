"""All ranks skip in mid-test by pytest.skip."""

import pytest
import torch
import torch.distributed as dist

FAULT = {
    "world_size": 2,
    "test": "test_fault",
    "verdict": ("skipped", "pytest.skip"),
    "ranks": ["skipped", "skipped"],
    "exit_code": 0,
    "words": ["not on a Sunday"],
    "seconds": 2,
}


def test_fault():
    pytest.skip("not on a Sunday")


def test_after(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

"""One rank passes where all are expected to fail."""

import pytest
import torch
import torch.distributed as dist

FAULT = {
    "world_size": 2,
    "test": "test_fault",
    "verdict": ("failure", "failed"),
    "leading": 1,
    "ranks": ["xfailed", "failed"],
    "words": ["rank 1 failed", "XPASS(strict)"],
    "seconds": 2,
}


@pytest.mark.xfail(strict=True, reason="known")
def test_fault(rank):
    assert rank == 1


def test_after(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

"""A hook makes expected failures failures, and leaves the mark in the report: pytest's summary has them as failed."""

import pytest
import torch
import torch.distributed as dist

FAULT = {
    "verdict": ("failure", "failed"),
    "leading": [0, 1],
    "ranks": ["failed", "failed"],
    "undetermined": "both fail at once",
    "words": ["the cause"],
    "seconds": 2,
}


@pytest.mark.xfail(reason="known")
def test_fault(rank):
    assert rank < 0, "the cause"


def test_after(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

"""A conftest patches and sets what the harness works with: one rank fails, and the report is as it would be without."""

import time

import torch
import torch.distributed as dist

FAULT = {
    "verdict": ("failure", "failed"),
    "leading": 1,
    "ranks": ["passed", "failed"],
    "words": ["rank 1 failed", "wrong"],
    "seconds": 8,
}


def test_one_is_late(rank):
    end = time.perf_counter() + rank
    while time.perf_counter() < end:
        pass


def test_fault(rank):
    assert rank == 0, "wrong"


def test_after(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

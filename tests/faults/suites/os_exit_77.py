"""All ranks skip in mid-test by os._exit, in the words of torch's table."""

import os

import torch
import torch.distributed as dist

FAULT = {
    "world_size": 2,
    "test": "test_fault",
    "verdict": ("skipped", "pytest.skip"),
    "ranks": ["skipped", "skipped"],
    "exit_code": 0,
    "words": ["Need at least 2 CUDA devices"],
    "seconds": 2,
}


def test_fault():
    os._exit(77)


def test_after(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

"""One rank skips by an exit code of torch's table, and its peer waits for it in a collective."""

import os

import torch
import torch.distributed as dist

FAULT = {
    "world_size": 2,
    "test": "test_fault",
    "verdict": ("error", "ranks disagree"),
    "ranks": ["failed", "skipped"],
    "words": ["1 skipped"],
    "seconds": 8,
}


def test_fault(rank):
    if rank == 1:
        os._exit(77)
    dist.all_reduce(torch.ones(1))


def test_after(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

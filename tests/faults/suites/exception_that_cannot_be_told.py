"""One rank raises an exception whose text cannot be had."""

import torch
import torch.distributed as dist

FAULT = {
    "world_size": 2,
    "test": "test_fault",
    "verdict": ("failure", "failed"),
    "leading": 1,
    "ranks": ["passed", "failed"],
    "words": ["rank 1 failed", "UnspeakableError"],
    "seconds": 2,
}


class UnspeakableError(Exception):
    def __str__(self):
        msg = "no words"
        raise RuntimeError(msg)

    __repr__ = __str__


def test_fault(rank):
    if rank == 1:
        raise UnspeakableError


def test_after(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

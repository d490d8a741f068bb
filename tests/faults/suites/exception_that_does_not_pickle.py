"""One rank raises an exception that cannot be pickled."""

import threading

import torch
import torch.distributed as dist

FAULT = {
    "world_size": 2,
    "test": "test_fault",
    "verdict": ("failure", "failed"),
    "leading": 1,
    "ranks": ["passed", "failed"],
    "words": ["rank 1 failed", "StubbornError", "held fast"],
    "seconds": 2,
}


class StubbornError(Exception):
    def __reduce__(self):
        raise TypeError(self)


def test_fault(rank):
    if rank == 1:
        msg = "held fast"
        raise StubbornError(msg, threading.Lock())


def test_after(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

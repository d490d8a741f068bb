"""A rank fails with an exception group, as asyncio's TaskGroup raises it: the message names what is in it."""

import torch
import torch.distributed as dist

FAULT = {
    "world_size": 2,
    "test": "test_fault",
    "verdict": ("failure", "failed"),
    "leading": 1,
    "ranks": ["aborted", "failed"],
    "words": ["rank 1 failed", "ExceptionGroup: many (2 sub-exceptions): ValueError: the cause"],
    "seconds": 5,  # the grace of the peer, and its stacks
}


def test_fault(rank):
    if rank == 1:
        msg = "many"
        raise ExceptionGroup(msg, [ValueError("the cause"), KeyError("another")])
    dist.all_reduce(torch.ones(1))


def test_after(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

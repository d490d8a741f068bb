"""One rank sends SIGTERM to the agent: the job ends in order, and says that it was ended from outside."""

import os
import signal
import time

import torch
import torch.distributed as dist

FAULT = {
    "world_size": 2,
    "test": "test_fault",
    "verdict": ("error", "aborted"),
    "ranks": ["aborted", "aborted"],
    "words": ["ended from outside"],
    "exit_code": 130,
    "others": {"test_after": "not run", "job": {"verdict": ("error", "job"), "words": ["interrupted"]}},
    "seconds": 3,
}


def test_before():
    pass


def test_fault(rank):
    dist.barrier()
    if rank == 1:
        os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(3600)


def test_after(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

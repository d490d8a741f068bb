"""The job's time is up in the middle of a test in which one rank waits for the other."""

import time

import torch
import torch.distributed as dist

FAULT = {
    "limits": {"process_group": 10, "test": 19, "job": 20},
    "verdict": ("error", "timed_out"),
    "leading": 1,
    "ranks": ["aborted", "timed_out"],
    "words": ["the job's time limit of 20 s was reached"],
    "others": {"test_after": "not run", "job": {"verdict": ("error", "job"), "words": ["The job timed out"]}},
    "seconds": 23,
}


def test_before():
    time.sleep(13)  # so that the peer's own time-out lies far behind the job's


def test_fault(rank):
    if rank == 1:
        time.sleep(1000)
    dist.all_reduce(torch.ones(1))

"""One rank sends SIGTERM to the agent: the job ends in order, and says that it was ended from outside."""

import os
import signal
import time

import torch.distributed as dist

FAULT = {
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

"""One rank kills the agent."""

import os
import signal
import time

import torch.distributed as dist

FAULT = {
    "verdict": ("error", "missing"),
    "ranks": ["missing", "missing"],
    "words": ["no result arrived"],
    "exit_code": 3,
    "others": {
        "test_after": {"verdict": ("error", "missing"), "ranks": ["missing", "missing"]},
        "job": {"verdict": ("error", "job"), "words": ["The agent ended before its work was done"]},
    },
    "seconds": 3,
}


def test_before():
    pass


def test_fault(rank):
    dist.barrier()
    if rank == 1:
        os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(3600)

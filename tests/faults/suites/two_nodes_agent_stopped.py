"""A rank on node 1 stops the agent of its node."""

import os
import signal
import time

import torch.distributed as dist

FAULT = {
    "nodes": 2,
    "verdict": ("error", "crashed"),
    "leading": 1,
    "ranks": ["aborted", "crashed"],
    "words": ["rank 1 is lost: the agent of node 1 did not answer"],
    "limits": {"test": 60, "job": 120, "silence": 3},
    "exit_code": 3,
    "others": {
        "test_after": {"verdict": ("error", "missing"), "ranks": ["missing", "missing"]},
        "job": {"verdict": ("error", "job"), "words": ["The agent of node 1 did not answer"]},
    },
    "seconds": 16,
}


def test_before():
    pass


def test_fault(rank):
    dist.barrier()
    if rank == 1:
        os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(3600)

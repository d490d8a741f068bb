"""One rank stops the agent: only the engine's own limit can end the job, 20 s after the job's."""

import os
import signal
import time

import torch.distributed as dist

FAULT = {
    "limits": {"process_group": 1, "test": 2, "job": 25},
    "verdict": ("error", "missing"),
    "ranks": ["missing", "missing"],
    "words": ["no result arrived"],
    "exit_code": 3,
    "others": {"test_after": "not run", "job": {"verdict": ("error", "job"), "words": ["timed out"]}},
    "seconds": 55,
}


def test_before():
    pass


def test_fault(rank):
    dist.barrier()
    if rank == 1:
        os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(3600)

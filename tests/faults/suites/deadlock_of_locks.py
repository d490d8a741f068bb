"""Each rank holds a lock that the other one waits for."""

import fcntl
import os

import torch.distributed as dist

FAULT = {
    "limits": {"process_group": 2, "test": 3},
    "verdict": ("error", "timed_out"),
    "leading": [0, 1],
    "ranks": ["timed_out", "timed_out"],
    "words": ["timed out", "3 s", "test_deadlock_of_locks.py"],
    "seconds": 6,
    "undetermined": "both are stopped by the same limit",
}


def lock(name):
    descriptor = os.open(name, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)


def test_fault(rank):
    lock(f"lock-{rank}")
    dist.barrier()
    lock(f"lock-{1 - rank}")

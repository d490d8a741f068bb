"""One rank starts a daemon with an empty environment that holds all its pipes and connections, and is killed."""

import os
import signal

import torch
import torch.distributed as dist

FAULT = {
    "verdict": ("error", "crashed"),
    "leading": 1,
    "ranks": ["aborted", "crashed"],
    "words": ["rank 1 was killed by SIGKILL"],
    "seconds": 4,
}


def test_fault(rank):
    if rank == 1:
        if os.fork() == 0:
            os.setsid()
            os.execve("/bin/sleep", ["sleep", "3608"], {})  # noqa: S606 - this is the fault
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))

"""One of four ranks is killed in a collective."""

import os
import signal

import torch
import torch.distributed as dist

FAULT = {
    "world_size": 4,
    "verdict": ("error", "crashed"),
    "leading": 2,
    "ranks": ["failed|aborted", "failed|aborted", "crashed", "failed|aborted"],
    "words": ["rank 2 was killed by SIGKILL"],
    "seconds": 3,
    "undetermined": "which peers have a connection to the dead rank in this collective is the back end's affair",
}


def test_fault(rank):
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))

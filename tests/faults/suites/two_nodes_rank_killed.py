"""A rank on node 1 is killed while the rank on node 0 waits for it."""

import os
import signal

import torch.distributed as dist

FAULT = {
    "nodes": 2,
    "verdict": ("error", "crashed"),
    "leading": 1,
    "ranks": ["errored|failed|aborted", "crashed"],
    "words": ["SIGKILL"],
    "undetermined": "gloo may tell rank 0 that its peer is gone before rank 0 is stopped",
    "seconds": 5,
}


def test_before():
    pass


def test_fault(rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()

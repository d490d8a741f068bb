"""Ranks swallow a wait in vain, and their next call fails at once, as their group is broken: the absent rank leads."""

import contextlib
import time

import torch.distributed as dist

FAULT = {
    "world_size": 3,
    "limits": {"process_group": 2, "test": 8},
    "verdict": ("error", "timed_out"),
    "leading": 1,
    "ranks": ["failed", "timed_out", "failed"],
    "words": ["rank 1 timed out", "ranks 0 and 2 waited for it", "in test_fault"],
    "seconds": 8,
}


def test_fault(rank):
    if rank == 1:
        time.sleep(100)
    with contextlib.suppress(RuntimeError):
        dist.barrier()
    dist.barrier()

"""One rank computes for ever, and its peer waits for it in a collective."""

import torch
import torch.distributed as dist

FAULT = {
    "limits": {"process_group": 2, "test": 6},
    "verdict": ("error", "timed_out"),
    "leading": 1,
    "ranks": ["failed", "timed_out"],
    "words": ["rank 1 timed out", "waited for it", "test_loops_for_ever.py"],
    "seconds": 5,
}


def test_fault(rank):
    while rank == 1:
        pass
    dist.all_reduce(torch.ones(1))

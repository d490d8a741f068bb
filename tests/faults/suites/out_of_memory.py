"""One rank takes memory until the kernel kills it, under the job's own limit."""

import torch
import torch.distributed as dist

FAULT = {
    "memory_mib": 900,
    "not_on": {"slurm": "the nodes of the trial cluster limit no memory, and the host would be the victim"},
    "verdict": ("error", "crashed"),
    "leading": 1,
    "ranks": ["failed", "crashed"],
    "words": ["rank 1", "out-of-memory killer"],
    "seconds": 6,
}


def test_fault(rank):
    taken = []
    while rank == 1:
        taken.append(b"x" * (1 << 24))
    dist.all_reduce(torch.ones(1))

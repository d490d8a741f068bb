"""One rank calls pytest.exit while its peer waits for it."""

import pytest
import torch
import torch.distributed as dist

FAULT = {
    "verdict": ("error", "crashed"),
    "leading": 1,
    "ranks": ["aborted", "crashed"],
    "words": ["rank 1", "enough of this"],
    "seconds": 3,
}


def test_fault(rank):
    if rank == 1:
        pytest.exit("enough of this")
    dist.all_reduce(torch.ones(1))

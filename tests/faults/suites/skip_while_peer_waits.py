"""One rank skips, and its peer waits for it in a collective."""

import pytest
import torch
import torch.distributed as dist

FAULT = {
    "verdict": ("error", "ranks disagree"),
    "ranks": ["aborted", "skipped"],
    "words": ["0 aborted", "1 skipped", "not on rank 1"],
    "seconds": 8,
}


def test_fault(rank):
    if rank == 1:
        pytest.skip("not on rank 1")
    dist.all_reduce(torch.ones(1))

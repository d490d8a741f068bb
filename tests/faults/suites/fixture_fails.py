"""A fixture fails on one rank, and its peer waits for it in the test."""

import pytest
import torch
import torch.distributed as dist

FAULT = {
    "verdict": ("error", "errored"),
    "leading": 1,
    "ranks": ["aborted", "errored"],
    "words": ["rank 1 errored", "no such thing", "aborted by rank 1"],
    "seconds": 3,
}


@pytest.fixture
def thing(rank):
    if rank == 1:
        msg = "no such thing"
        raise LookupError(msg)


@pytest.mark.usefixtures("thing")
def test_fault():
    dist.all_reduce(torch.ones(1))

"""One rank of four asserts while its peers wait for it in a collective."""

import torch
import torch.distributed as dist

FAULT = {
    "world_size": 4,
    "verdict": ("failure", "failed"),
    "leading": 1,
    "ranks": ["aborted", "failed", "aborted", "aborted"],
    "words": ["rank 1 failed", "the answer is wrong", "aborted by rank 1"],
    "seconds": 5.5,  # the grace of the peers, and the stacks of three
}


def test_fault(rank):
    assert rank != 1, "the answer is wrong"
    dist.all_reduce(torch.ones(1))

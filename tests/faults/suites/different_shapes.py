"""The ranks call one collective with tensors of different shapes."""

import torch
import torch.distributed as dist

FAULT = {
    "limits": {"process_group": 2, "test": 6},
    "environment": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
    "verdict": ("failure", "failed"),
    "leading": [0, 1],
    "ranks": ["failed", "failed"],
    "words": ["failed", "mismatch between collectives"],
    "seconds": 5,
    "undetermined": "both find the difference at the same time",
}


def test_fault(rank):
    dist.all_reduce(torch.ones(1 + rank))

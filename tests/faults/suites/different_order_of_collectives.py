"""The ranks call two collectives in different order."""

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
    calls = [dist.all_reduce, lambda tensor: dist.broadcast(tensor, 0)]
    for call in calls if rank == 0 else reversed(calls):
        call(torch.ones(1))

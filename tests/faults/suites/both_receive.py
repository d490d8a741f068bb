"""Each rank waits for a message of the other one."""

import torch
import torch.distributed as dist

FAULT = {
    "limits": {"process_group": 2, "test": 6},
    "verdict": ("failure", "failed"),
    "leading": [0, 1],
    "ranks": ["failed", "failed"],
    "words": ["failed"],
    "seconds": 4,
    "undetermined": "both run into the same limit of the process group",
}


def test_fault(rank):
    dist.recv(torch.ones(1), 1 - rank)

"""One rank of four calls a collective with another dtype, size or root: it leads, whichever rank that kills."""

import torch
import torch.distributed as dist

FAULT = {
    "world_size": 4,
    "test": "test_dtype",
    "limits": {"process_group": 3, "test": 8},
    "seconds": 12,
    "verdict": [("failure", "failed"), ("error", "crashed"), ("error", "errored"), ("error", "timed_out")],
    "leading": 2,
    "ranks": [
        "failed|crashed|aborted",
        "failed|crashed|aborted",
        "failed|crashed|errored|timed_out",
        "failed|crashed|aborted",
    ],
    "words": ["ranks 0, 1 and 3 called all_reduce #1 of 4 float32, rank 2 all_reduce #1 of 4 float64"],
    "undetermined": "which rank finds the difference, and how",
    "others": {
        "test_size": {
            "verdict": [("failure", "failed"), ("error", "crashed"), ("error", "errored"), ("error", "timed_out")],
            "leading": 2,
            "ranks": [
                "failed|crashed|aborted",
                "failed|crashed|aborted",
                "failed|crashed|errored|timed_out",
                "failed|crashed|aborted",
            ],
            "words": ["ranks 0, 1 and 3 called all_reduce #1 of 4 float32, rank 2 all_reduce #1 of 9 float32"],
            "undetermined": "which rank finds the difference, and how",
        },
        "test_root": {
            "verdict": ("failure", "failed"),
            "leading": 2,
            "ranks": ["failed", "failed", "failed", "failed"],
            "words": ["ranks 0, 1 and 3 called reduce #1 of 4 float32 with root 0", "rank 2 reduce #1", "with root 2"],
        },
    },
}


def test_dtype(rank):
    dist.all_reduce(torch.ones(4, dtype=torch.float64 if rank == 2 else torch.float32))


def test_size(rank):
    dist.all_reduce(torch.ones(9 if rank == 2 else 4))


def test_root(rank):
    dist.reduce(torch.ones(4), dst=2 if rank == 2 else 0)
    dist.barrier()

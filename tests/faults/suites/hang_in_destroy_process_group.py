"""One rank hangs when the process group is destroyed at the end of its gang."""

import time

import torch.distributed as dist

FAULT = {
    "isolation": "test",
    "limits": {"process_group": 2, "test": 3},
    "verdict": ("error", "timed_out"),
    "leading": 1,
    "ranks": ["passed", "timed_out"],
    "words": ["rank 1 timed out", "2 s", "hang"],
    "seconds": 5,
}


def hang():
    time.sleep(3600)


def test_fault(rank):
    if rank == 1:
        dist.destroy_process_group = hang  # in this rank alone, which is a process of its own

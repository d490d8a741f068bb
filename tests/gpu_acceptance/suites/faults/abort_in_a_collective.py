"""One rank aborts, as CUDA's and NCCL's own threads do, while its peer is in a collective."""

import os

FAULT = {
    "world_size": 2,
    "test": "test_fault",
    "verdict": ("error", "crashed"),
    "leading": 1,
    "words": ["rank 1 was killed by SIGABRT"],
    "limits": {"process_group": 20, "test": 30, "job": 90},
    "seconds": 40,
}


def fault(_gpu, rank, all_reduce):
    if rank == 1:
        os.abort()
    all_reduce()

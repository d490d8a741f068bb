"""One rank aborts, as a failed assertion of C++ does; its last words on standard error are kept."""

import os

import torch
import torch.distributed as dist

FAULT = {
    "verdict": ("error", "crashed"),
    "leading": 1,
    "ranks": ["failed", "crashed"],
    "words": ["rank 1 was killed by SIGABRT"],
    "output": ["terminate called: last words"],
    "seconds": 2,
}


def test_fault(rank):
    if rank == 1:
        os.write(2, b"terminate called: last words\n")
        os.abort()
    dist.all_reduce(torch.ones(1))

"""The container of node 1 is paused while the rank on node 0 waits in an all_reduce."""

import time

import torch
import torch.distributed as dist

FAULT = {
    "nodes": 2,
    "strike": ("pause", 1),
    "not_on": {"process": "its nodes are no containers", "slurm": "its nodes are no containers"},
    "pytest_args": ["-s"],
    "verdict": ("error", "crashed"),
    "leading": 1,
    "ranks": ["aborted", "crashed"],
    "words": ["rank 1 is lost: the agent of node 1 did not answer"],
    "limits": {"process_group": 60, "test": 90, "job": 120, "silence": 3},
    "exit_code": 3,
    "others": {
        "test_after": {"verdict": ("error", "missing"), "ranks": ["missing", "missing"]},
        "job": {"verdict": ("error", "job"), "words": ["The agent of node 1 did not answer"]},
    },
    "seconds": 12,
}


def test_before():
    pass


def test_fault(rank):
    dist.barrier()
    if rank == 1:
        time.sleep(3600)
    print("waiting now")
    dist.all_reduce(torch.ones(1))

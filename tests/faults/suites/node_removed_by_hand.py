"""The container of node 1 is removed by hand while the rank on node 0 waits in an all_reduce."""

import time

import torch
import torch.distributed as dist

FAULT = {
    "nodes": 2,
    "strike": ("remove", 1),
    "not_on": {"process": "its nodes are no containers", "slurm": "its nodes are no containers"},
    "pytest_args": ["-s"],
    "verdict": ("error", "crashed"),
    "leading": 1,
    "ranks": ["errored|failed|aborted", "crashed"],
    "words": ["rank 1 is lost: the agent of node 1 is gone"],
    "undetermined": "rank 0 may be told that its peer is gone before it is stopped",
    "limits": {"process_group": 60, "test": 90, "job": 120},
    "exit_code": 4,
    "others": {
        "test_after": {"verdict": ("error", "missing"), "ranks": ["missing", "missing"]},
        "job": {
            "verdict": ("error", "job"),
            "words": ["The container of node 1 of gloo-w2-g0-env-n2/faulty was removed while the job ran"],
            "text": ["No such container"],
        },
    },
    "seconds": 6,
}


def test_before():
    pass


def test_fault(rank):
    dist.barrier()
    if rank == 1:
        time.sleep(3600)
    print("waiting now")
    dist.all_reduce(torch.ones(1))

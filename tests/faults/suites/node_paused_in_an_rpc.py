"""The container of node 1 is paused while the rank on node 0 waits for the answer of an RPC."""

import time

from torch.distributed import rpc

from allranks.testing import with_rpc, worker_name

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


@with_rpc
def test_fault(rank):
    if rank == 0:
        print("waiting now")
        rpc.rpc_sync(worker_name(1), time.sleep, args=(3600,), timeout=0)

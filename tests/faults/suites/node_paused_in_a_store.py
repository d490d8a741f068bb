"""The container of node 1 is paused while the rank on node 0 waits for a key of a store that node 1 serves."""

import time
from datetime import timedelta

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
    port = [None]
    if rank == 1:
        store = dist.TCPStore("node1", 0, is_master=True, wait_for_workers=False)
        port = [store.port]
    dist.broadcast_object_list(port, src=1)
    if rank == 1:
        time.sleep(3600)
    store = dist.TCPStore("node1", port[0], is_master=False)
    print("waiting now")
    store.wait(["never"], timedelta(hours=1))

"""Importing the suite hangs on node 1 alone."""

import os
import time

import torch
import torch.distributed as dist

FAULT = {
    "world_size": 2,
    "nodes": 2,
    "test": "test_fault",
    "limits": {"assembly": 6},
    "verdict": ("error", "missing"),
    "ranks": ["missing", "missing"],
    "words": ["The agent of node 1 has not collected its tests within 6 s"],
    "exit_code": 3,
    "others": {
        "test_after": {"verdict": ("error", "missing"), "ranks": ["missing", "missing"]},
        "job": {"verdict": ("error", "job"), "words": ["The agent of node 1 has not collected its tests within 6 s"]},
    },
    "seconds": 15,
}

if os.environ.get("GROUP_RANK") == "1":
    time.sleep(3600)


def test_fault():
    pass


def test_after(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

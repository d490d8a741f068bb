"""A suite's file expects failures: one comes, one does not and is named, and a crash is excused by nothing."""

import os

import torch
import torch.distributed as dist

FAULT = {
    "test": "test_crashes",
    "verdict": ("error", "crashed"),
    "leading": 1,
    "ranks": ["passed|xpassed", "crashed"],
    "words": ["rank 1 exited with code 3"],
    "undetermined": "rank 0 does what nobody expected",
    "others": {
        "test_fails": {
            "verdict": ("skipped", "pytest.xfail"),
            "ranks": ["xfailed", "xfailed"],
            "words": ["known upstream (https://example.org/1)"],
        },
        "test_passes": {"verdict": ("passed", ""), "ranks": ["xpassed", "xpassed"]},
        "test_fails_under_another_torch": {
            "verdict": ("failure", "failed"),
            "leading": [0, 1],
            "ranks": ["failed", "failed"],
            "words": ["wrong"],
            "undetermined": "both fail at once",
        },
    },
    "prints": ["expected to fail, but passed: suite/test_known_failures.py::test_passes."],
    "seconds": 8,
}


def test_fails():
    raise AssertionError


def test_passes():
    pass


def test_crashes(rank):
    if rank == 1:
        os._exit(3)


def test_fails_under_another_torch():
    msg = "wrong"
    raise ValueError(msg)


def test_after(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

"""A test fails, and its ``finally`` leaves with an exit status that is a skip in torch's table: that undoes nothing."""

import os
import sys

import torch
import torch.distributed as dist

FAULT = {
    "world_size": 2,
    "test": "test_fault",
    "verdict": ("error", "crashed"),
    "leading": [0, 1],
    "ranks": ["crashed", "crashed"],
    "undetermined": "both leave at once",
    "words": ["AssertionError: the cause; then SystemExit: 77"],
    "seconds": 3,
    "others": {
        "test_exit_of_the_process": {
            "verdict": ("error", "crashed"),
            "leading": [0, 1],
            "ranks": ["crashed", "crashed"],
            "words": ["left with exit code 77 in mid-test"],
            "undetermined": "both leave at once",
        },
    },
}


def test_fault():
    try:
        assert torch.cuda.device_count() < 0, "the cause"
    finally:
        sys.exit(77)


def test_exit_of_the_process():
    try:
        assert torch.cuda.device_count() < 0, "the cause"
    finally:
        os._exit(77)


def test_after(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

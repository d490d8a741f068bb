"""The exception that ends a test is not what failed first, or does not tell it: the message names that."""

import os
import sys

import torch
import torch.distributed as dist

FAULT = {
    "world_size": 3,
    "test": "test_waits_in_finally",
    "limits": {"process_group": 4, "job": 90},
    "verdict": ("failure", "failed"),
    "leading": 1,
    "ranks": ["failed|aborted", "failed", "failed|aborted"],
    "undetermined": "whose time-out comes first",
    "words": ["rank 1 failed", "AssertionError: the cause; then RuntimeError"],
    "seconds": 16,  # the time-out of the process group, and two graces of peers
    "others": {
        "test_exception_group": {
            "verdict": ("failure", "failed"),
            "leading": 1,
            "ranks": ["aborted", "failed", "aborted"],
            "words": ["rank 1 failed", "ExceptionGroup: many (2 sub-exceptions): ValueError: the cause"],
        },
        "test_exit_of_python": {
            "verdict": ("error", "crashed"),
            "leading": [0, 1, 2],
            "ranks": ["crashed", "crashed", "crashed"],
            "words": ["AssertionError: the cause; then SystemExit: 77"],
            "undetermined": "all leave at once",
        },
        "test_exit_of_the_process": {
            "verdict": ("error", "crashed"),
            "leading": [0, 1, 2],
            "ranks": ["crashed", "crashed", "crashed"],
            "words": ["exited with code 77 during the test"],
            "undetermined": "all leave at once",
        },
    },
}


def test_waits_in_finally(rank):
    try:
        assert rank != 1, "the cause"
        dist.all_reduce(torch.ones(1))
    finally:
        dist.barrier()


def test_exception_group(rank):
    if rank == 1:
        msg = "many"
        raise ExceptionGroup(msg, [ValueError("the cause"), KeyError("another")])
    dist.all_reduce(torch.ones(1))


def test_exit_of_python(rank):
    try:
        assert rank < 0, "the cause"
    finally:
        sys.exit(77)


def test_exit_of_the_process(rank):
    try:
        assert rank < 0, "the cause"
    finally:
        os._exit(77)

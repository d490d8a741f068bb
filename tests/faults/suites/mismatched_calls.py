"""The ranks call different collectives, or with different tensors: the message names what each of them called."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist

FAULT = {
    "test": "test_all_reduce_and_barrier",
    "limits": {
        "process_group": 3,
        "test": 7,
        "job": 120,
    },
    "seconds": 50,
    "verdict": [("failure", "failed"), ("error", "timed_out")],
    "leading": [0, 1],
    "ranks": ["failed|aborted|timed_out", "failed|aborted|timed_out"],
    "words": ["called all_reduce #1", "barrier #1"],
    "undetermined": "whose call fails first",
    "others": {
        "test_two_calls_in_another_order": {
            "verdict": [("failure", "failed"), ("error", "timed_out")],
            "leading": [0, 1],
            "ranks": ["failed|aborted|timed_out", "failed|aborted|timed_out"],
            "words": ["broadcast #1", "all_reduce #1"],
            "undetermined": "whose call fails first",
        },
        "test_other_shapes": {
            "verdict": [("failure", "failed"), ("error", "crashed"), ("error", "timed_out")],
            "leading": [0, 1],
            "ranks": ["passed|failed|crashed|aborted|timed_out", "passed|failed|crashed|aborted|timed_out"],
            "words": ["all_reduce #1 of 1 float32", "all_reduce #1 of 4 float32"],
            "undetermined": "whose call fails first",
        },
        "test_other_dtypes": {
            "verdict": [("failure", "failed"), ("error", "crashed"), ("error", "timed_out")],
            "leading": [0, 1],
            "ranks": ["passed|failed|crashed|aborted|timed_out", "passed|failed|crashed|aborted|timed_out"],
            "words": ["all_reduce #1 of 4 float32", "all_reduce #1 of 4 float64"],
            "undetermined": "whose call fails first",
        },
        "test_one_is_behind_and_neither_waits": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["aborted", "timed_out"],
            "words": ["rank 1 timed out"],
        },
        "test_one_waits_for_a_key_that_the_other_never_sets": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["aborted", "timed_out"],
            "words": ["rank 1 timed out"],
        },
    },
}


def test_all_reduce_and_barrier(rank):
    if rank == 0:
        dist.all_reduce(torch.ones(4))
    else:
        dist.barrier()


def test_two_calls_in_another_order(rank):
    calls = [dist.all_reduce, lambda tensor: dist.broadcast(tensor, 0)]
    for call in calls if rank == 1 else reversed(calls):
        call(torch.ones(4))


def test_other_shapes(rank):
    dist.all_reduce(torch.ones(1 + 3 * rank))


def test_other_dtypes(rank):
    dist.all_reduce(torch.ones(4, dtype=torch.float64 if rank else torch.float32))


def test_one_is_behind_and_neither_waits(rank):
    if rank == 0:
        dist.all_reduce(torch.ones(4), async_op=True)
    while True:
        pass


def test_one_waits_for_a_key_that_the_other_never_sets(rank):
    if rank == 1:
        time.sleep(100)
    dist.distributed_c10d._get_default_store().wait(["never"], timedelta(seconds=100))

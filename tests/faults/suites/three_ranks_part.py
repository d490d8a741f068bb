"""Of three ranks, one calls something else, or in another group: it leads, and the message names both calls."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist

FAULT = {
    "world_size": 3,
    "test": "test_two_in_a_barrier",
    "limits": {"process_group": 3, "test": 7, "job": 120},
    "seconds": 53,
    "verdict": [("failure", "failed"), ("error", "timed_out")],
    "leading": 0,
    "ranks": ["failed|timed_out", "failed|aborted", "failed|aborted"],
    "words": ["rank 0", "called all_reduce #1", "ranks 1 and 2 barrier #1"],
    "undetermined": "whether its own call or the grace ends first",
    "others": {
        "test_two_in_a_broadcast": {
            "verdict": [("failure", "failed"), ("error", "timed_out")],
            "leading": 2,
            "ranks": ["passed|failed|aborted", "passed|failed|aborted", "failed|timed_out"],
            "words": ["rank 2", "ranks 0 and 1 called broadcast #1, rank 2 all_reduce #1"],
            "undetermined": "whether its own call or the grace ends first",
        },
        "test_one_in_another_group": {
            "verdict": [("failure", "failed"), ("error", "timed_out")],
            "leading": 1,
            "ranks": ["failed|aborted", "failed|timed_out", "failed|aborted"],
            "words": ["ranks 0 and 2 called all_reduce #1 of group default", "rank 1 called all_reduce #1 of group"],
            "undetermined": "whether its own call or the grace ends first",
        },
        "test_a_circle_of_groups": {
            "verdict": ("error", "timed_out"),
            "leading": [0, 1, 2],
            "ranks": ["timed_out", "timed_out", "timed_out"],
            "words": ["rank 0 called all_reduce #1 of group", "rank 1 called all_reduce #1 of group"],
            "undetermined": "each waits for the next",
        },
        "test_a_chain": {
            "verdict": ("error", "timed_out"),
            "leading": 2,
            "ranks": ["failed|aborted", "failed|aborted", "timed_out"],
            "words": ["rank 2 timed out", "in sleep"],
            "undetermined": "whether their own calls or the grace ends first",
        },
        "test_two_asleep": {
            "verdict": ("error", "timed_out"),
            "leading": [1, 2],
            "ranks": ["failed", "timed_out", "timed_out"],
            "words": ["waited for it", "in sleep"],
            "undetermined": "both sleep",
        },
    },
}


def sleep():
    time.sleep(100)


def test_two_in_a_barrier(rank):
    if rank == 0:
        dist.all_reduce(torch.ones(1))
    dist.barrier()


def test_two_in_a_broadcast(rank):
    if rank == 2:
        dist.all_reduce(torch.ones(1))
    dist.broadcast(torch.ones(1), 1)
    dist.barrier()


def test_one_in_another_group(rank):
    group = dist.new_group([0, 1, 2], timeout=timedelta(seconds=3))
    dist.all_reduce(torch.ones(1), group=group if rank == 1 else None)


def test_a_circle_of_groups(rank):
    groups = [dist.new_group([number, (number + 1) % 3]) for number in range(3)]  # half an hour is their time limit
    dist.all_reduce(torch.ones(1), group=groups[rank])
    dist.all_reduce(torch.ones(1), group=groups[rank - 1])


def test_a_chain(rank):
    if rank == 2:
        sleep()
    dist.recv(torch.ones(1), rank + 1)


def test_two_asleep(rank):
    if rank > 0:
        sleep()
    dist.monitored_barrier(timeout=timedelta(seconds=1))

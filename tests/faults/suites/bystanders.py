"""Of four ranks, some are busy and nobody waits for them: they are not to blame for waits of others."""

import os
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist

FAULT = {
    "world_size": 4,
    "test": "test_one_is_slow_and_another_is_missing",
    "limits": {"process_group": 4, "test": 8, "job": 220},
    "seconds": 70,
    "verdict": ("error", "timed_out"),
    "leading": 2,
    "ranks": ["aborted|passed|timed_out", "passed", "timed_out", "failed"],
    "words": ["rank 2 timed out", "in sleep"],
    "undetermined": "what becomes of the slow one",
    "others": {
        "test_one_is_in_no_group": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["aborted|timed_out", "timed_out", "failed", "failed"],
            "words": ["rank 1 timed out", "in sleep"],
            "undetermined": "what becomes of the one outside",
        },
        "test_one_is_killed_and_two_are_busy": {
            "verdict": ("error", "crashed"),
            "leading": 3,
            "ranks": ["aborted", "aborted", "failed|aborted", "crashed"],
            "words": ["rank 3 was killed by SIGKILL"],
            "undetermined": "whether the peer's own call or the grace ends first",
        },
        "test_a_chain_and_one_beside_it": {
            "verdict": ("error", "timed_out"),
            "leading": 2,
            "ranks": ["aborted|timed_out|failed", "failed", "timed_out", "aborted|timed_out"],
            "words": ["rank 2 timed out", "in sleep"],
            "undetermined": "what becomes of the others",
        },
        "test_two_are_busy_with_a_message_of_their_own": {
            "verdict": ("error", "timed_out"),
            "leading": 3,
            "ranks": ["aborted|timed_out", "aborted|timed_out", "failed", "timed_out"],
            "words": ["rank 3 timed out", "in sleep"],
            "undetermined": "what becomes of those that nobody waits for",
        },
    },
}

SHORT = timedelta(seconds=0.6)


def sleep():
    time.sleep(100)


def receive(source):
    dist.irecv(torch.ones(1), source).wait(SHORT)


def reduce(group=None):
    dist.all_reduce(torch.ones(1), group=group, async_op=True).wait(SHORT)


def test_one_is_slow_and_another_is_missing(rank):
    if rank == 0:
        time.sleep(4)
    if rank == 2:
        sleep()
    if rank == 3:
        receive(2)


def test_one_is_in_no_group(rank):
    group = dist.new_group([1, 2, 3])
    if rank < 2:
        sleep()
    reduce(group)


def test_one_is_killed_and_two_are_busy(rank):
    if rank == 3:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 2:
        dist.recv(torch.ones(1), 3)
    sleep()


def test_a_chain_and_one_beside_it(rank):
    if rank > 1:
        sleep()
    if rank == 0:
        dist.recv(torch.ones(1), 1)
    receive(2)


def test_two_are_busy_with_a_message_of_their_own(rank):
    if rank == 2:
        receive(3)
    if rank == 0:
        dist.send(torch.ones(1), 1)
    if rank == 1:
        dist.recv(torch.ones(1), 0)
    sleep()

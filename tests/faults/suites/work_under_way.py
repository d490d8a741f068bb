"""One rank fails by itself with work under way that its sleeping peer never enters: it does not wait for it."""

import threading
import time

import pytest
import torch
import torch._dynamo  # the first functional collective imports it, which takes seconds of this test's limit
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

FAULT = {
    "test": "test_a_broadcast",
    "limits": {"process_group": 4, "test": 8, "job": 200},
    "seconds": 70,
    "verdict": ("failure", "failed"),
    "leading": 0,
    "ranks": ["failed", "aborted"],
    "words": ["rank 0 failed", "its own"],
    "others": {
        "test_a_functional_collective": {
            "verdict": ("failure", "failed"),
            "leading": 0,
            "ranks": ["failed", "aborted"],
            "words": ["rank 0 failed", "its own"],
        },
        "test_an_earlier_one_ended": {
            "verdict": ("failure", "failed"),
            "leading": 0,
            "ranks": ["failed", "aborted"],
            "words": ["rank 0 failed", "its own"],
        },
        "test_wrong_shapes": {
            "verdict": ("failure", "failed"),
            "leading": 0,
            "ranks": ["failed", "aborted"],
            "words": ["rank 0 failed", "must match"],
        },
        "test_a_subgroup": {
            "verdict": ("failure", "failed"),
            "leading": 0,
            "ranks": ["failed", "aborted"],
            "words": ["rank 0 failed", "its own"],
        },
        "test_polls_of_the_store_end_in_time": {
            "verdict": ("failure", "failed"),
            "leading": 0,
            "ranks": ["failed", "aborted"],
            "words": ["rank 0 failed", "its own"],
        },
        "test_the_peer_comes_late_to_a_work_that_ended_before_the_failure": {
            "verdict": ("failure", "failed"),
            "leading": 0,
            "ranks": ["failed", "aborted"],
            "words": ["rank 0 failed", "its own"],
        },
        "test_a_thread_received_and_the_test_fails": {
            "verdict": ("failure", "failed"),
            "leading": 0,
            "ranks": ["failed", "aborted"],
            "words": ["rank 0 failed", "its own"],
        },
        "test_the_one_that_never_entered_fails_by_itself": {
            "verdict": ("failure", "failed"),
            "leading": 1,
            "ranks": ["failed|aborted", "failed"],
            "words": ["rank 1 failed", "its own"],
            "undetermined": "whether the peer's own call or the grace ends first",
        },
    },
}


def sleep():
    time.sleep(100)


def fail(words="its own"):
    raise LookupError(words)


def test_a_broadcast(rank):
    if rank == 1:
        sleep()
    work = dist.broadcast(torch.ones(1), 1, async_op=True)
    fail()
    work.wait()


def test_a_functional_collective(rank):
    if rank == 1:
        sleep()
    tensor = functional.all_reduce(torch.ones(1), "sum", dist.group.WORLD)
    fail()
    tensor.item()


def test_an_earlier_one_ended(rank):
    dist.barrier()
    dist.all_reduce(torch.ones(1))
    if rank == 1:
        sleep()
    work = dist.all_gather([torch.ones(1) for _ in range(2)], torch.ones(1), async_op=True)
    with pytest.raises(ZeroDivisionError):
        _ = 1 / rank
    fail()
    work.wait()


def test_wrong_shapes(rank):
    if rank == 1:
        sleep()
    work = dist.all_reduce(torch.ones(1), async_op=True)
    torch.ones(2) + torch.ones(3)
    work.wait()


def test_a_subgroup(rank):
    group = dist.new_group([0, 1])
    if rank == 1:
        sleep()
    works = [dist.all_reduce(torch.ones(1), group=group, async_op=True) for _ in range(3)]
    fail()
    works[-1].wait()


def test_polls_of_the_store_end_in_time(rank):
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        time.sleep(0.4)
        store.set("ready", "1")
        sleep()
    while not store.check(["ready"]):
        time.sleep(0.05)
    fail()


def test_the_peer_comes_late_to_a_work_that_ended_before_the_failure(rank):
    if rank == 1:
        time.sleep(0.8)
        dist.all_reduce(torch.ones(1))
        sleep()
    tensor = torch.ones(1)
    dist.all_reduce(tensor, async_op=True)
    time.sleep(1.2)
    assert tensor.item() == 2
    fail()


def test_a_thread_received_and_the_test_fails(rank):
    if rank == 1:
        dist.send(torch.ones(1), 0)
        sleep()
    thread = threading.Thread(target=dist.recv, args=(torch.zeros(1), 1))
    thread.start()
    thread.join()
    fail()


def test_the_one_that_never_entered_fails_by_itself(rank):
    if rank == 1:
        time.sleep(0.5)
        fail()
    work = dist.all_reduce(torch.ones(1), async_op=True)
    work.wait()

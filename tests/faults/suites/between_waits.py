"""What a rank does between a wait in vain, or a wrong call, and its failure changes nothing in who leads."""

import contextlib
import os
import signal
import sys
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

FAULT = {
    "test": "test_expects_something_else_in_between",
    "limits": {"process_group": 4, "test": 8, "job": 220},
    "seconds": 90,
    "verdict": ("error", "timed_out"),
    "leading": 1,
    "ranks": ["failed", "timed_out"],
    "words": ["rank 1 timed out", "in sleep"],
    "others": {
        "test_expects_something_else_between_polls": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["failed", "timed_out"],
            "words": ["rank 1 timed out", "in sleep"],
        },
        "test_writes_into_the_store_in_between": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["failed", "timed_out"],
            "words": ["rank 1 timed out", "in sleep"],
        },
        "test_a_group_of_its_own_in_between": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["failed", "timed_out"],
            "words": ["rank 1 timed out", "in sleep"],
        },
        "test_expects_another_type": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["failed", "timed_out"],
            "words": ["rank 1 timed out", "in sleep"],
        },
        "test_expects_a_warning": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["failed", "timed_out"],
            "words": ["rank 1 timed out", "in sleep"],
        },
        "test_expects_an_error_that_does_not_come": {
            "verdict": ("failure", "failed"),
            "leading": 0,
            "ranks": ["failed", "aborted"],
            "words": ["rank 0 failed", "DID NOT RAISE"],
        },
        "test_other_words_for_a_wrong_root": {
            "verdict": ("failure", "failed"),
            "leading": 0,
            "ranks": ["failed", "aborted"],
            "words": ["rank 0 failed", "bad root"],
        },
        "test_swallows_its_wrong_argument": {
            "verdict": ("failure", "failed"),
            "leading": 0,
            "ranks": ["failed", "aborted"],
            "words": ["rank 0 failed", "its own"],
        },
        "test_expects_its_wrong_argument": {
            "verdict": ("failure", "failed"),
            "leading": 0,
            "ranks": ["failed", "aborted"],
            "words": ["rank 0 failed", "its own"],
        },
        "test_a_wrong_argument_in_its_own_words": {
            "verdict": ("failure", "failed"),
            "leading": 0,
            "ranks": ["failed", "aborted"],
            "words": ["rank 0 failed", "LookupError"],
        },
        "test_an_operation_that_floats_lack_in_its_own_words": {
            "verdict": ("failure", "failed"),
            "leading": 0,
            "ranks": ["failed", "aborted"],
            "words": ["rank 0 failed", "LookupError"],
        },
        "test_leaves_with_work_under_way": {
            "verdict": ("error", "crashed"),
            "leading": 0,
            "ranks": ["crashed", "aborted"],
            "words": ["rank 0 exited with code 3"],
        },
        "test_is_killed_with_work_under_way": {
            "verdict": ("error", "crashed"),
            "leading": 0,
            "ranks": ["crashed", "aborted"],
            "words": ["rank 0 was killed by SIGKILL"],
        },
        "test_leaves_python_with_work_under_way": {
            "verdict": ("error", "crashed"),
            "leading": 0,
            "ranks": ["crashed", "aborted"],
            "words": ["rank 0"],
        },
    },
}

SHORT = timedelta(seconds=0.6)


def sleep():
    time.sleep(100)


def fail(words="its own"):
    raise LookupError(words)


def start(group=None):
    return dist.all_reduce(torch.ones(4), group=group, async_op=True)


def store():
    return dist.distributed_c10d._get_default_store()


def is_done_in_time():
    with contextlib.suppress(RuntimeError):
        start().wait(SHORT)
        return True
    return False


def test_expects_something_else_in_between(rank):
    if rank == 1:
        sleep()
    is_done = is_done_in_time()
    with pytest.raises(ZeroDivisionError):
        _ = 1 / rank
    assert is_done


def test_expects_something_else_between_polls(rank):
    if rank == 1:
        sleep()
    work = start()
    for _ in range(5):
        time.sleep(0.1)
        with pytest.raises(ZeroDivisionError):
            _ = 1 / rank
        if work.is_completed():
            break
    assert work.is_completed()


def test_writes_into_the_store_in_between(rank):
    if rank == 1:
        sleep()
    is_done = is_done_in_time()
    store().set("tried", "1")
    assert store().get("tried") == b"1"
    assert is_done


def test_a_group_of_its_own_in_between(rank):
    alone = dist.new_group([0])
    if rank == 1:
        sleep()
    is_done = is_done_in_time()
    dist.all_reduce(torch.ones(1), group=alone)
    assert is_done


def test_expects_another_type(rank):
    if rank == 1:
        sleep()
    with pytest.raises(ValueError, match="shape"):
        start().wait(SHORT)


def test_expects_a_warning(rank):
    if rank == 1:
        sleep()
    with pytest.warns(DeprecationWarning, match="old"):
        start().wait(SHORT)


def test_expects_an_error_that_does_not_come(rank):
    if rank == 1:
        start().wait()
        sleep()
    with pytest.raises(RuntimeError):
        start().wait()


def test_other_words_for_a_wrong_root(rank):
    if rank == 1:
        sleep()
    words = ""
    try:
        dist.reduce(torch.ones(1), dst=5)
    except RuntimeError as error:
        words = str(error)
    assert "bad root" in words


def test_swallows_its_wrong_argument(rank):
    if rank == 1:
        sleep()
    with contextlib.suppress(RuntimeError):
        dist.all_gather([torch.ones(1)], torch.ones(1))
    fail()


def test_expects_its_wrong_argument(rank):
    if rank == 1:
        sleep()
    with pytest.raises(RuntimeError, match="scalar type"):
        dist.all_reduce(torch.ones(1, dtype=torch.int16))
    fail()


def test_a_wrong_argument_in_its_own_words(rank):
    if rank == 1:
        sleep()
    try:
        dist.broadcast(torch.ones(1), 7)
    except RuntimeError:
        raise LookupError from None


def test_an_operation_that_floats_lack_in_its_own_words(rank):
    if rank == 1:
        sleep()
    try:
        dist.all_reduce(torch.ones(4), op=dist.ReduceOp.BOR, async_op=True).wait()
    except RuntimeError:
        raise LookupError from None


def test_leaves_with_work_under_way(rank):
    if rank == 1:
        sleep()
    start()
    os._exit(3)


def test_is_killed_with_work_under_way(rank):
    if rank == 1:
        sleep()
    start()
    os.kill(os.getpid(), signal.SIGKILL)


def test_leaves_python_with_work_under_way(rank):
    if rank == 1:
        sleep()
    start()
    sys.exit(5)

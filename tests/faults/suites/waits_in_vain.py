"""One rank sleeps, and its peer notices in many ways that it waits in vain: the one that sleeps leads each time."""

import os
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

FAULT = {
    "test": "test_monitored_barrier",
    "limits": {
        "process_group": 4,
        "test": 8,
        "job": 150,
    },
    "seconds": 83,
    "verdict": ("error", "timed_out"),
    "leading": 1,
    "ranks": ["failed", "timed_out"],
    "words": ["rank 1 timed out", "waited for it", "in sleep"],
    "others": {
        "test_monitored_barrier_of_all": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["failed", "timed_out"],
            "words": ["rank 1 timed out", "waited for it", "in sleep"],
        },
        "test_wait_with_a_timeout": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["failed", "timed_out"],
            "words": ["rank 1 timed out", "waited for it", "in sleep"],
        },
        "test_wrapped_by_an_exception_of_its_own": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["failed", "timed_out"],
            "words": ["rank 1 timed out", "waited for it", "in sleep"],
        },
        "test_wrapped_twice": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["failed", "timed_out"],
            "words": ["rank 1 timed out", "waited for it", "in sleep"],
        },
        "test_in_a_group": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["failed", "timed_out"],
            "words": ["rank 1 timed out", "waited for it", "in sleep"],
        },
        "test_fails_in_the_handler": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["failed", "timed_out"],
            "words": ["rank 1 timed out", "waited for it", "in sleep"],
        },
        "test_leaves_in_the_handler": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["crashed", "timed_out"],
            "words": ["rank 1 timed out", "waited for it", "in sleep"],
        },
        "test_aborts_in_the_handler": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["crashed", "timed_out"],
            "words": ["rank 1 timed out", "waited for it", "in sleep"],
        },
        "test_another_error_in_the_handler": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["failed", "timed_out"],
            "words": ["rank 1 timed out", "waited for it", "in sleep"],
        },
        "test_fails_after_the_handler_without_a_word": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["failed", "timed_out"],
            "words": ["rank 1 timed out", "waited for it", "in sleep"],
        },
        "test_polls_and_asserts": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["failed", "timed_out"],
            "words": ["rank 1 timed out", "waited for it", "in sleep"],
        },
        "test_receives": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["failed", "timed_out"],
            "words": ["rank 1 timed out", "waited for it", "in sleep"],
        },
        "test_waits_for_a_message": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["failed", "timed_out"],
            "words": ["rank 1 timed out", "waited for it", "in sleep"],
        },
        "test_waits_for_a_key": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["failed", "timed_out"],
            "words": ["rank 1 timed out", "waited for it", "in sleep"],
        },
        "test_in_a_subgroup": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["failed", "timed_out"],
            "words": ["rank 1 timed out", "waited for it", "in sleep"],
        },
        "test_objects": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["failed", "timed_out"],
            "words": ["rank 1 timed out", "waited for it", "in sleep"],
        },
    },
}

SHORT = timedelta(seconds=1)


class StepError(Exception):
    pass


def sleep():
    time.sleep(100)


def start():
    return dist.all_reduce(torch.ones(4), async_op=True)


def test_monitored_barrier(rank):
    if rank == 1:
        sleep()
    dist.monitored_barrier(timeout=SHORT)


def test_monitored_barrier_of_all(rank):
    if rank == 1:
        sleep()
    dist.monitored_barrier(timeout=SHORT, wait_all_ranks=True)


def test_wait_with_a_timeout(rank):
    if rank == 1:
        sleep()
    start().wait(SHORT)


def test_wrapped_by_an_exception_of_its_own(rank):
    if rank == 1:
        sleep()
    try:
        start().wait(SHORT)
    except RuntimeError as error:
        raise StepError from error


def test_wrapped_twice(rank):
    if rank == 1:
        sleep()
    try:
        try:
            start().wait(SHORT)
        except RuntimeError as error:
            raise StepError from error
    except StepError as error:
        raise LookupError from error


def test_in_a_group(rank):
    if rank == 1:
        sleep()
    errors = []
    for _ in range(2):
        try:
            start().wait(SHORT)
        except RuntimeError as error:
            errors.append(error)
    message = "two"
    raise ExceptionGroup(message, errors)


def test_fails_in_the_handler(rank):
    if rank == 1:
        sleep()
    try:
        start().wait(SHORT)
    except RuntimeError:
        pytest.fail("nobody came")


def test_leaves_in_the_handler(rank):
    if rank == 1:
        sleep()
    try:
        start().wait(SHORT)
    except RuntimeError:
        os._exit(5)


def test_aborts_in_the_handler(rank):
    if rank == 1:
        sleep()
    try:
        start().wait(SHORT)
    except RuntimeError:
        os.abort()


def test_another_error_in_the_handler(rank):
    if rank == 1:
        sleep()
    try:
        start().wait(SHORT)
    except RuntimeError:
        [].pop()


def test_fails_after_the_handler_without_a_word(rank):
    if rank == 1:
        sleep()
    try:
        start().wait(SHORT)
    except RuntimeError:
        raise StepError from None


def test_polls_and_asserts(rank):
    if rank == 1:
        sleep()
    work = start()
    for _ in range(10):
        time.sleep(0.1)
        if work.is_completed():
            break
    assert work.is_completed()


def test_receives(rank):
    if rank == 1:
        sleep()
    dist.recv(torch.ones(4), 1)


def test_waits_for_a_message(rank):
    if rank == 1:
        sleep()
    dist.irecv(torch.ones(4), 1).wait(SHORT)


def test_waits_for_a_key(rank):
    if rank == 1:
        sleep()
    dist.distributed_c10d._get_default_store().wait(["never"], SHORT)


def test_in_a_subgroup(rank):
    group = dist.new_group([0, 1])
    if rank == 1:
        sleep()
    dist.all_reduce(torch.ones(4), group=group, async_op=True).wait(SHORT)


def test_objects(rank):
    if rank == 1:
        sleep()
    dist.broadcast_object_list([None], 1)

"""One rank sleeps, and its peer swallows what its wait raises, and fails of what it finds later: the sleeper leads."""

import asyncio
import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

FAULT = {
    "test": "test_retries",
    "limits": {"process_group": 4, "test": 8, "job": 120},
    "seconds": 50,
    "verdict": ("error", "timed_out"),
    "leading": 1,
    "ranks": ["failed", "timed_out"],
    "words": ["rank 1 timed out", "waited for it", "in sleep"],
    "others": {
        "test_in_a_thread_that_records": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["failed", "timed_out"],
            "words": ["rank 1 timed out", "waited for it", "in sleep"],
        },
        "test_by_its_words_alone": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["failed", "timed_out"],
            "words": ["rank 1 timed out", "waited for it", "in sleep"],
        },
        "test_polls_the_store": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["failed", "timed_out"],
            "words": ["rank 1 timed out", "waited for it", "in sleep"],
        },
        "test_result_looked_at_later": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["failed", "timed_out"],
            "words": ["rank 1 timed out", "waited for it", "in sleep"],
        },
        "test_in_an_executor": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["failed", "timed_out"],
            "words": ["rank 1 timed out", "waited for it", "in sleep"],
        },
        "test_in_a_task": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["failed", "timed_out"],
            "words": ["rank 1 timed out", "waited for it", "in sleep"],
        },
        "test_a_callback_on_the_way_out": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["failed", "timed_out"],
            "words": ["rank 1 timed out", "waited for it", "in sleep"],
        },
        "test_other_words_than_expected": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["failed", "timed_out"],
            "words": ["rank 1 timed out", "waited for it", "in sleep"],
        },
        "test_expects_one_and_fails_of_itself": {
            "verdict": ("failure", "failed"),
            "leading": 0,
            "ranks": ["failed", "aborted"],
            "words": ["rank 0 failed: assert 0 == 1"],
        },
        "test_has_its_peer_in_the_end_and_fails_of_itself": {
            "verdict": ("failure", "failed"),
            "leading": 0,
            "ranks": ["failed", "aborted"],
            "words": ["rank 0 failed: assert 0 == 1"],
        },
        "test_swallows_it_and_passes": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["passed", "timed_out"],
            "words": ["rank 1 timed out", "not finished after 8 s", "in sleep"],
        },
    },
}

SHORT = timedelta(seconds=0.5)


def sleep():
    time.sleep(100)


def reduce():
    dist.all_reduce(torch.ones(4), async_op=True).wait(SHORT)


def test_retries(rank):
    if rank == 1:
        sleep()
    is_done = False
    for _ in range(2):
        with contextlib.suppress(RuntimeError):
            reduce()
            is_done = True
    assert is_done


def test_in_a_thread_that_records(rank):
    if rank == 1:
        sleep()
    errors = []

    def work():
        try:
            reduce()
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not errors


def test_by_its_words_alone(rank):
    if rank == 1:
        sleep()
    words = ""
    try:
        reduce()
    except RuntimeError as error:
        words = str(error)
    assert not words


def test_polls_the_store(rank):
    if rank == 1:
        sleep()
    store = dist.distributed_c10d._get_default_store()
    for _ in range(10):
        if store.check(["ready"]):
            return
        time.sleep(0.05)
    pytest.fail("not ready")


def test_result_looked_at_later(rank):
    if rank == 1:
        sleep()
    tensor = torch.zeros(1)
    with contextlib.suppress(RuntimeError):
        dist.irecv(tensor, 1).wait(SHORT)
    assert tensor.item() == 1


def test_in_an_executor(rank):
    if rank == 1:
        sleep()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(reduce).result()


def test_in_a_task(rank):
    if rank == 1:
        sleep()

    async def work():
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(reduce))
            group.create_task(asyncio.sleep(10))

    asyncio.run(work())


def test_a_callback_on_the_way_out(rank):
    if rank == 1:
        sleep()
    with contextlib.ExitStack() as stack:
        stack.callback({}.pop, "nothing")
        reduce()


def test_other_words_than_expected(rank):
    if rank == 1:
        sleep()
    with pytest.raises(RuntimeError, match="mismatch"):
        reduce()


def test_expects_one_and_fails_of_itself(rank):
    if rank == 1:
        sleep()
    with pytest.raises(RuntimeError):
        reduce()
    assert rank == 1


def test_has_its_peer_in_the_end_and_fails_of_itself(rank):
    group = dist.new_group()
    if rank == 1:
        dist.send(torch.ones(1), 0)
        sleep()
    with contextlib.suppress(RuntimeError):
        dist.all_reduce(torch.ones(1), group=group, async_op=True).wait(SHORT)
    dist.recv(torch.ones(1), 1)
    assert rank == 1


def test_swallows_it_and_passes(rank):
    if rank == 1:
        sleep()
    with contextlib.suppress(RuntimeError):
        reduce()

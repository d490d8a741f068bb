"""One rank waits without end for something of its own, while its peer waits for it: the first leads."""

import asyncio
import multiprocessing
import queue
import socket
import subprocess
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import rpc

from allranks.testing import with_rpc, worker_name

FAULT = {
    "test": "test_a_future_of_torch_that_nobody_sets",
    "limits": {"process_group": 3, "test": 8, "job": 200},
    "seconds": 80,
    "verdict": ("error", "timed_out"),
    "leading": 0,
    "ranks": ["timed_out", "failed"],
    "words": ["rank 0 timed out"],
    "others": {
        "test_a_future_after_another_of_its_own": {
            "verdict": ("error", "timed_out"),
            "leading": 0,
            "ranks": ["timed_out", "failed"],
            "words": ["rank 0 timed out"],
        },
        "test_a_queue_that_nobody_fills": {
            "verdict": ("error", "timed_out"),
            "leading": 0,
            "ranks": ["timed_out", "failed"],
            "words": ["rank 0 timed out"],
        },
        "test_a_command_that_does_not_end": {
            "verdict": ("error", "timed_out"),
            "leading": 0,
            "ranks": ["timed_out", "failed"],
            "words": ["rank 0 timed out"],
        },
        "test_a_connection_that_nobody_makes": {
            "verdict": ("error", "timed_out"),
            "leading": 0,
            "ranks": ["timed_out", "failed"],
            "words": ["rank 0 timed out"],
        },
        "test_a_store_that_only_this_rank_has": {
            "verdict": ("error", "timed_out"),
            "leading": 0,
            "ranks": ["timed_out", "failed"],
            "words": ["rank 0 timed out"],
        },
        "test_an_event_of_asyncio": {
            "verdict": ("error", "timed_out"),
            "leading": 0,
            "ranks": ["timed_out", "failed"],
            "words": ["rank 0 timed out"],
        },
        "test_a_thread_that_sleeps": {
            "verdict": ("error", "timed_out"),
            "leading": 0,
            "ranks": ["timed_out", "failed"],
            "words": ["rank 0 timed out"],
        },
        "test_a_process_that_it_forked": {
            "verdict": ("error", "timed_out"),
            "leading": 0,
            "ranks": ["timed_out", "failed"],
            "words": ["rank 0 timed out"],
        },
        "test_a_work_started_before_and_a_queue": {
            "verdict": ("error", "timed_out"),
            "leading": 0,
            "ranks": ["timed_out", "failed"],
            "words": ["rank 0 timed out"],
        },
        "test_a_remote_call_to_itself": {
            "verdict": ("error", "timed_out"),
            "leading": 0,
            "ranks": ["timed_out", "failed|aborted"],
            "words": ["rank 0 timed out"],
            "undetermined": "whether the peer's own call or the time limit ends first",
        },
    },
}


def wait():
    dist.all_reduce(torch.ones(1))


def test_a_future_of_torch_that_nobody_sets(rank):
    if rank == 1:
        wait()
    torch.futures.Future().wait()


def test_a_future_after_another_of_its_own(rank):
    if rank == 1:
        wait()
    first = torch.futures.Future()
    torch.futures.collect_all([first, torch.futures.Future()]).wait()


def test_a_queue_that_nobody_fills(rank):
    if rank == 1:
        wait()
    queue.Queue().get()


def test_a_command_that_does_not_end(rank):
    if rank == 1:
        wait()
    subprocess.run(["/bin/sleep", "100"], check=True)


def test_a_connection_that_nobody_makes(rank):
    if rank == 1:
        wait()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.accept()


def test_a_store_that_only_this_rank_has(rank):
    if rank == 1:
        wait()
    dist.HashStore().wait(["never"], timedelta(seconds=100))


def test_an_event_of_asyncio(rank):
    if rank == 1:
        wait()

    async def work():
        await asyncio.Event().wait()

    asyncio.run(work())


def test_a_thread_that_sleeps(rank):
    if rank == 1:
        wait()
    thread = threading.Thread(target=time.sleep, args=(100,), daemon=True)
    thread.start()
    thread.join()


def test_a_process_that_it_forked(rank):
    if rank == 1:
        wait()
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(100,), daemon=True)
    child.start()
    child.join()


def test_a_work_started_before_and_a_queue(rank):
    work = dist.all_reduce(torch.ones(1), async_op=True)
    if rank == 1:
        work.wait()
        wait()
    queue.Queue().get()


@with_rpc
def test_a_remote_call_to_itself(rank):
    if rank == 1:
        wait()
    rpc.rpc_sync(worker_name(0), time.sleep, args=(100,), timeout=0)

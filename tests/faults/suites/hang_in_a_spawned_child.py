"""A process that one rank has spawned hangs, and the rank waits for it."""

import multiprocessing
import time

import pytest

FAULT = {
    "limits": {"process_group": 5, "test": 8, "job": 60},
    "verdict": ("error", "timed_out"),
    "leading": 1,
    "ranks": ["passed", "timed_out"],
    "words": ["rank 1 timed out", "in test_fault; child process SpawnProcess-2 was in", "in hang"],
    "text": ["--- child process SpawnProcess-2: pid", "in hang"],
    "seconds": 16,
}


def hang(number):
    if number == 1:
        time.sleep(3600)


@pytest.mark.no_process_group
def test_fault(rank):
    if rank == 1:
        context = multiprocessing.get_context("spawn")
        children = [context.Process(target=hang, args=(number,)) for number in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join()


def test_after(world_size):
    import torch
    import torch.distributed as dist

    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

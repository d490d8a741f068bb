"""A process that one rank has spawned dies of a signal."""

import ctypes
import multiprocessing

import pytest

FAULT = {
    "verdict": ("failure", "failed"),
    "leading": 1,
    "ranks": ["passed", "failed"],
    "words": ["rank 1 failed: child process SpawnProcess-2 was killed by SIGSEGV; assert"],
    "output": ["Fatal Python error: Segmentation fault", "in crash"],
    "seconds": 10,
}


def crash(number):
    if number == 1:
        ctypes.string_at(0)


@pytest.mark.no_process_group
def test_fault(rank):
    if rank == 1:
        context = multiprocessing.get_context("spawn")
        children = [context.Process(target=crash, args=(number,)) for number in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        assert all(child.exitcode == 0 for child in children)


def test_after(world_size):
    import torch
    import torch.distributed as dist

    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

"""A process that one rank has forked raises, and its peer waits for it; the rank ignores both."""

import multiprocessing

import pytest

FAULT = {
    "limits": {"process_group": 20, "test": 40, "job": 60},
    "verdict": ("failure", "failed"),
    "leading": 1,
    "ranks": ["passed", "failed"],
    "words": ["rank 1 failed: child process (rank 0) raised ValueError: boom at ", "forked_child_raises.py:"],
    "text": ["raise ValueError(msg)", "child process (rank 1) "],
    "seconds": 30,
}


def work(number, file):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{file}", rank=number, world_size=2)
    if number == 0:
        msg = "boom"
        raise ValueError(msg)
    dist.all_reduce(torch.ones(1))


@pytest.mark.no_process_group
def test_fault(rank, tmp_path):
    if rank == 1:
        context = multiprocessing.get_context("fork")
        children = [context.Process(target=work, args=(number, tmp_path / "store")) for number in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        assert [child.exitcode for child in children] == [0, 0]


def test_after(world_size):
    import torch
    import torch.distributed as dist

    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

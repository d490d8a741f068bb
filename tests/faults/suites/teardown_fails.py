"""A fixture's tear-down fails on one rank."""

import pytest
import torch
import torch.distributed as dist

FAULT = {
    "world_size": 2,
    "test": "test_fault",
    "verdict": ("error", "errored"),
    "leading": 1,
    "ranks": ["passed", "errored"],
    "words": ["rank 1 errored", "cannot put it back"],
    "seconds": 2,
}


@pytest.fixture
def thing(rank):
    yield
    if rank == 1:
        msg = "cannot put it back"
        raise LookupError(msg)


@pytest.mark.usefixtures("thing")
def test_fault():
    pass


def test_after(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

"""A job beside the attacks, which comes to exactly this."""

import time

import pytest
import torch
import torch.distributed as dist

TRUTH = {
    "tests": {
        "test_wait[*": {"ranks": ["passed", "passed"], "count": 10},
        "test_fails": ["passed", "failed"],
        "test_skips": ["skipped", "skipped"],
        "test_reduces": ["passed", "passed"],
    },
}


@pytest.mark.parametrize("number", range(10))
def test_wait(number):
    time.sleep(0.3)


def test_fails(rank):
    assert rank == 0


def test_skips():
    pytest.skip("it says so")


def test_reduces(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

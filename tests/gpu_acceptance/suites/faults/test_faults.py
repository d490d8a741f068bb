"""One planted fault, which a variable names, between two innocent tests on the same GPU."""

import importlib.util
import os
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from gpu_acceptance import notes
from gpu_acceptance.device import device as make_gpu

SPEC = importlib.util.spec_from_file_location("fault", Path(__file__).with_name(f"{os.environ['FAULT']}.py"))
PLANTED = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(PLANTED)


@pytest.fixture
def all_reduce(device, world_size):
    def run():
        tensor = torch.ones(1 << 10, device=device)
        dist.all_reduce(tensor)
        assert tensor.unique().tolist() == [world_size]

    return run


def test_before(all_reduce):
    all_reduce()
    time.sleep(float(os.environ["PAUSE"]))


def test_fault(rank, all_reduce):
    notes.leave("fault", rank=rank)
    PLANTED.fault(make_gpu(), rank, all_reduce)


def test_after(rank, all_reduce):
    all_reduce()
    notes.leave("after", rank=rank)

"""One rank starts a program that outlives it and holds its output."""

import subprocess

import torch
import torch.distributed as dist

FAULT = {
    "world_size": 2,
    "test": "test_fault",
    "verdict": ("passed", ""),
    "ranks": ["passed", "passed"],
    "exit_code": 0,
    "says": ["rank 1", "sleep 3607"],
    "seconds": 4,
}


def test_fault(rank):
    if rank == 1:
        subprocess.Popen(["sleep", "3607"])  # noqa: S607 - any sleep will do


def test_after(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

"""One rank removes every file of the job's results: what is lost is missing, never green."""

import os
from pathlib import Path

import torch
import torch.distributed as dist

FAULT = {
    "world_size": 2,
    "test": "test_fault",
    "verdict": ("error", "missing"),
    "ranks": ["missing", "missing"],
    "words": ["nothing came back"],
    "exit_code": 3,
    "others": {
        "test_before": {"verdict": ("error", "missing"), "ranks": ["missing", "missing"]},
        "test_after": {"verdict": ("error", "missing"), "ranks": ["missing", "missing"]},
    },
    "seconds": 3,
}


def test_before():
    pass


def results():
    """The job's results folder, from the agent's command line."""
    arguments = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().split(b"\0")
    return Path(os.fsdecode(arguments[arguments.index(b"--results") + 1]))


def test_fault(rank):
    dist.barrier()
    if rank == 1:
        for path in results().iterdir():
            path.unlink()
    dist.barrier()


def test_after(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

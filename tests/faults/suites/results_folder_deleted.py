"""One rank removes the job's results folder: the host has what was reported."""

import os
import shutil
from pathlib import Path

import torch.distributed as dist

FAULT = {
    "verdict": ("passed", ""),
    "ranks": ["passed", "passed"],
    "exit_code": 0,
    "not_on": {"docker": "the folder is an entry of one that belongs to root, and no rank may remove it"},
    "others": {
        "test_before": {"verdict": ("passed", ""), "ranks": ["passed", "passed"]},
        "test_after": {"verdict": ("passed", ""), "ranks": ["passed", "passed"]},
    },
    "seconds": 4,
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
        shutil.rmtree(results())
    dist.barrier()

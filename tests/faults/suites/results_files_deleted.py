"""One rank removes every file of the job's results: the host has what was reported, and loses only logs."""

import os
from pathlib import Path

import torch.distributed as dist

FAULT = {
    "verdict": ("passed", ""),
    "ranks": ["passed", "passed"],
    "exit_code": 0,
    "others": {
        "test_before": {"verdict": ("passed", ""), "ranks": ["passed", "passed"]},
        "test_after": {"verdict": ("passed", ""), "ranks": ["passed", "passed"]},
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

"""One rank stops the supervisor of its node: the agent does its work, and the end comes at the job's limit."""

import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist

FAULT = {
    "world_size": 2,
    "test": "test_fault",
    "not_on": {
        "process": "its supervisor is the command itself",
        "docker": "its supervisor is process 1 of the container, which no signal from inside can kill",
    },
    "verdict": ("passed", ""),
    "ranks": ["passed", "passed"],
    "exit_code": 0,
    "limits": {"process_group": 1, "test": 4, "job": 8},
    "seconds": 38,
}


def test_before():
    pass


def supervisor():
    """The parent of the agent."""
    stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def test_fault(rank):
    dist.barrier()
    if rank == 1:
        os.kill(supervisor(), signal.SIGSTOP)


def test_after(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size

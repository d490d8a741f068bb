"""One rank kills the supervisor of its node, as if the kernel had chosen it: nobody can tell how the test ended.

Its folder for temporary files stays: the next supervisor of this node removes it.
"""

import os
import signal
import time
from pathlib import Path

import torch.distributed as dist

FAULT = {
    "not_on": {
        "process": "its supervisor is the command itself",
        "docker": "its supervisor is process 1 of the container, which no signal from inside can kill",
    },
    "verdict": ("error", "missing"),
    "ranks": ["missing", "missing"],
    "exit_code": 4,
    "others": {
        "test_after": {"verdict": ("error", "missing"), "ranks": ["missing", "missing"]},
        "job": {"verdict": ("error", "job"), "words": ["The job has left no exit status: SLURM job"]},
    },
    "leaves": ["allranks-node-"],
    "seconds": 20,
}


def test_before():
    pass


def supervisor():
    """The parent of the agent."""
    stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def test_fault(rank):
    dist.barrier()
    time.sleep(1)  # what was reported so far is in the shared folder then
    if rank == 1:
        os.kill(supervisor(), signal.SIGKILL)
    time.sleep(3600)

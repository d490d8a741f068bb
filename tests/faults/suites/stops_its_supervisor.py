"""One rank stops the supervisor of its node: no outcome comes from then on, and the end comes at the job's limit."""

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
    "exit_code": 3,
    "others": {
        "test_after": {"verdict": ("skipped", "pytest.skip"), "ranks": []},
        "job": {
            "verdict": ("error", "job"),
            "words": ["the last test that ended was suite/test_stops_its_supervisor.py::test_before"],
        },
    },
    "limits": {"process_group": 1, "test": 4, "job": 8},
    "seconds": 38,
}


def test_before():
    pass


def supervisor():
    """The parent of the agent."""
    stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def has_told_of_the_test_before():
    """Whether the supervisor has written the record with which this test begins, after that with all names."""
    return Path("../node-0/stream").read_bytes().count(b"::test_fault") > 1


def test_fault(rank):
    dist.barrier()
    if rank == 1:
        while not has_told_of_the_test_before():
            time.sleep(0.01)
        os.kill(supervisor(), signal.SIGSTOP)

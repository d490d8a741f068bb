"""One rank cancels the SLURM job that it is in."""

import os
import shutil
import subprocess
import time

import torch.distributed as dist

FAULT = {
    "not_on": {"process": "its jobs are not SLURM's", "docker": "its jobs are not SLURM's"},
    "verdict": ("error", "aborted"),
    "ranks": ["aborted", "aborted"],
    "exit_code": 4,
    "others": {
        "test_after": {"verdict": ("error", "missing"), "ranks": ["missing", "missing"]},
        "job": {"verdict": ("error", "job"), "words": ["was canceled (scancel)"]},
    },
    "seconds": 20,
}


def test_before():
    pass


def test_fault(rank):
    dist.barrier()
    if rank == 1:
        subprocess.run([str(shutil.which("scancel")), os.environ["SLURM_JOB_ID"]], check=True)
    time.sleep(3600)

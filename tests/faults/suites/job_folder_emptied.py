"""One rank empties the folder of its job, as a test does that removes the folder above its own."""

import shutil
import time
from pathlib import Path

import torch.distributed as dist

FAULT = {
    "not_on": {
        "process": "no file of that folder has anything to say of the outcomes",
        "docker": "the folder is of a container's own",
    },
    "verdict": ("error", "missing"),
    "ranks": ["missing", "missing"],
    "exit_code": 4,
    "others": {
        "test_after": {"verdict": ("error", "missing"), "ranks": ["missing", "missing"]},
        "job": {"verdict": ("error", "job"), "words": ["The job lost its files", "was emptied, or removed"]},
    },
    "seconds": 20,
}


def test_before():
    pass


def test_fault(rank):
    dist.barrier()
    time.sleep(3)  # what was reported so far is read: the command looks for it four times a second
    if rank == 1:
        for path in Path("..").resolve().iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
    dist.barrier()

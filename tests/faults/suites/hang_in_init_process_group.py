"""One rank of the first gang hangs while it joins the process group: its peer runs into the limit and does not lead."""

import time
from pathlib import Path

import torch.distributed as dist

FAULT = {
    "limits": {"process_group": 2, "test": 6},
    "isolation": "test",
    "verdict": ("error", "timed_out"),
    "leading": 1,
    "ranks": ["errored", "timed_out"],
    "words": ["rank 1 timed out", "hang_once"],
    "seconds": 6,
}


join = dist.init_process_group


def hang_once(*arguments, rank, **options):
    mark = Path("has-hung")
    if rank == 1 and not mark.exists():
        mark.touch()
        time.sleep(3600)
    join(*arguments, rank=rank, **options)


dist.init_process_group = hang_once


def test_fault():
    pass

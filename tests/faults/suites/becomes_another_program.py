"""One rank executes another program in its place."""

import os

FAULT = {
    "verdict": ("error", "crashed"),
    "leading": 1,
    "ranks": ["passed", "crashed"],
    "words": ["rank 1 closed its connection to the supervisor and was killed"],
    "seconds": 4,
}


def test_fault(rank):
    if rank == 1:
        os.execvp("sleep", ["sleep", "3600"])  # noqa: S606, S607 - this is the fault

"""One rank hangs in a test with a time limit of its own."""

import time

import pytest

FAULT = {
    "limits": {"process_group": 10, "test": 30},
    "verdict": ("error", "timed_out"),
    "leading": 1,
    "ranks": ["passed", "timed_out"],
    "words": ["rank 1 timed out", "2 s"],
    "seconds": 5,
}


@pytest.mark.time_limit(2)
def test_fault(rank):
    if rank == 1:
        time.sleep(3600)

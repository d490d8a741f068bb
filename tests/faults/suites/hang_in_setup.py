"""One rank hangs in a fixture's set-up."""

import time

import pytest

FAULT = {
    "limits": {"process_group": 2, "test": 3},
    "verdict": ("error", "timed_out"),
    "leading": 1,
    "ranks": ["passed", "timed_out"],
    "words": ["rank 1 timed out", "3 s", "test_hang_in_setup.py"],
    "seconds": 6,
}


@pytest.fixture
def slow(rank):
    if rank == 1:
        time.sleep(3600)


@pytest.mark.usefixtures("slow")
def test_fault():
    pass

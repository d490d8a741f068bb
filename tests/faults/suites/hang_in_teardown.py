"""One rank hangs in a fixture's tear-down."""

import time

import pytest

FAULT = {
    "limits": {"process_group": 2, "test": 3},
    "verdict": ("error", "timed_out"),
    "leading": 1,
    "ranks": ["passed", "timed_out"],
    "words": ["rank 1 timed out", "3 s", "test_hang_in_teardown.py"],
    "seconds": 6,
}


@pytest.fixture
def slow(rank):
    yield
    if rank == 1:
        time.sleep(3600)


@pytest.mark.usefixtures("slow")
def test_fault():
    pass

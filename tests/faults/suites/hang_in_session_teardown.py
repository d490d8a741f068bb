"""One rank hangs in the tear-down of a session fixture."""

import time

import pytest

FAULT = {
    "isolation": "test",
    "limits": {"process_group": 2, "test": 3},
    "verdict": ("error", "timed_out"),
    "leading": 1,
    "ranks": ["passed", "timed_out"],
    "words": ["rank 1 timed out", "test_hang_in_session_teardown.py"],
    "seconds": 6,
}


@pytest.fixture(scope="session")
def slow(rank):
    yield
    if rank == 1:
        time.sleep(3600)


@pytest.mark.usefixtures("slow")
def test_fault():
    pass

"""Both ranks fail, and one hangs in the tear-down of a session fixture: the failure is the verdict."""

import time

import pytest

FAULT = {
    "verdict": ("failure", "failed"),
    "leading": 0,
    "ranks": ["failed", "failed"],
    "words": ["rank 0 failed", "the first cause"],
    "seconds": 5,
}


@pytest.fixture(scope="session")
def slow(rank):
    yield
    if rank == 1:
        time.sleep(3600)


@pytest.mark.usefixtures("slow")
def test_fault(rank):
    if rank == 1:
        time.sleep(0.5)
        pytest.fail("the second one")
    pytest.fail("the first cause")

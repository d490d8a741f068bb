"""One rank fails, and hangs in the tear-down of the same test: the failure is the verdict."""

import time

import pytest

FAULT = {
    "verdict": ("failure", "failed"),
    "leading": 1,
    "ranks": ["passed", "failed"],
    "words": ["rank 1 failed", "the first cause"],
    "seconds": 5,
}


@pytest.fixture
def slow(rank):
    yield
    if rank == 1:
        time.sleep(3600)


@pytest.mark.usefixtures("slow")
def test_fault(rank):
    assert rank == 0, "the first cause"

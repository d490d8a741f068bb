"""A fixture of rank 1 forks as it is torn down: the child ends well, and the rank fails."""

import os
import time

import pytest

TRUTH = {"tests": {"test_attack": ["honest", "bad"]}}


@pytest.fixture
def forking(rank):
    yield
    if rank == 1 and os.fork() > 0:
        time.sleep(1)
        raise AssertionError


def test_attack(forking):
    pass

"""A fixture of rank 1 forks and returns twice, in the parent and in the child; the test fails in the parent alone."""

import os
import time

import pytest

TRUTH = {"tests": {"test_attack": ["honest", "bad"]}}


@pytest.fixture(scope="module")
def is_child(rank):
    return rank == 1 and os.fork() == 0


def test_attack(rank, is_child):
    if rank == 1 and not is_child:
        time.sleep(1)
        raise AssertionError

"""A timer ends rank 1 with the status of a skip, after its test has failed and while that is torn down."""

import os
import threading
import time

import pytest

TRUTH = {"tests": {"test_attack": ["honest", "bad"]}}


@pytest.fixture
def slow(rank):
    yield
    if rank == 1:
        time.sleep(5)


def test_attack(rank, slow):
    if rank == 1:
        threading.Timer(0.5, os._exit, [77]).start()
        raise AssertionError

"""Rank 1 fails, and ends with the status of a skip as it is torn down."""

import os

import pytest

TRUTH = {"tests": {"test_attack[*": {"ranks": ["honest", "bad"], "count": 3}}}


@pytest.fixture
def leaving(rank, status):
    yield
    if rank == 1:
        os._exit(status)


@pytest.mark.parametrize("status", [0, 72, 77])
def test_attack(rank, leaving, status):
    assert rank == 0

"""Rank 1 ends with every status in the tear-down of a test that passed."""

import os

import pytest

TRUTH = {"is_sample": True, "tests": {"test_attack[*": {"ranks": ["honest", "bad"], "count": 22}}}


@pytest.fixture
def leaving(rank, status):
    yield
    if rank == 1:
        os._exit(status)


@pytest.mark.parametrize("status", [0, *range(70, 91)])
def test_attack(leaving, status):
    pass

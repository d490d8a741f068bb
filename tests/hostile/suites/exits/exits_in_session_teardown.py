"""Rank 1 ends with every status in the tear-down of its session, after a test that passed."""

import os

import pytest

TRUTH = {
    "isolation": "test",
    "tests": {"test_attack[*": {"ranks": ["honest", "bad"], "count": 22}},
}


@pytest.fixture(scope="session")
def leaving(rank):
    status = []
    yield status
    if rank == 1:
        os._exit(status[0])


@pytest.mark.parametrize("status", [0, *range(70, 91)])
def test_attack(leaving, status):
    leaving.append(status)

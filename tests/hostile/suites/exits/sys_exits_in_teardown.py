"""Rank 1 raises SystemExit with every status in the tear-down of a test that passed."""

import sys

import pytest

TRUTH = {"tests": {"test_attack[*": {"ranks": ["honest", "bad"], "count": 22}}}


@pytest.fixture
def leaving(rank, status):
    yield
    if rank == 1:
        sys.exit(status)


@pytest.mark.parametrize("status", [0, *range(70, 91)])
def test_attack(leaving, status):
    pass

"""Rank 1 raises SystemExit with every status in the tear-down of its session."""

import sys

import pytest

TRUTH = {"isolation": "test", "tests": {"test_attack[*": {"ranks": ["honest", "bad"], "count": 22}}}


@pytest.fixture(scope="session")
def leaving(rank):
    status = []
    yield status
    if rank == 1:
        sys.exit(status[0])


@pytest.mark.parametrize("status", [0, *range(70, 91)])
def test_attack(leaving, status):
    leaving.append(status)

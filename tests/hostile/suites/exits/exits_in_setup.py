"""Rank 1 ends with every status while a fixture is set up."""

import os

import pytest

TRUTH = {"tests": {"test_attack[*": {"ranks": ["honest", "unpassed"], "is_bad": True, "count": 22}}}


@pytest.fixture
def leaving(rank, status):
    if rank == 1:
        os._exit(status)


@pytest.mark.parametrize("status", [0, *range(70, 91)])
def test_attack(leaving, status):
    pass

"""Rank 1 ends with every status in a test that rank 0 passes: a skip of one rank is no skip of the test."""

import os

import pytest

TRUTH = {"tests": {"test_attack[*": {"ranks": ["honest", "unpassed"], "is_bad": True, "count": 22}}}


@pytest.mark.parametrize("status", [0, *range(70, 91)])
def test_attack(rank, status):
    if rank == 1:
        os._exit(status)

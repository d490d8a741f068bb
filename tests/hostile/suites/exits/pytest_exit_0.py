"""Rank 1 leaves the session by pytest.exit, with the status of success."""

import pytest

TRUTH = {"tests": {"test_attack": ["honest", "bad"]}}


def test_attack(rank):
    if rank == 1:
        pytest.exit("all is well", returncode=0)

"""Rank 1 closes every descriptor that it has."""

import os

TRUTH = {"is_sample": True, "tests": {"test_attack": ["honest", "bad"]}}


def test_attack(rank):
    if rank == 1:
        os.closerange(0, 4096)
        raise AssertionError

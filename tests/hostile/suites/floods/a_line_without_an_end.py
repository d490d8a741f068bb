"""Rank 1 prints 64 MiB without the end of a line, and fails."""

import os

import reach

TRUTH = {"tests": {"test_attack": ["honest", "bad"]}}


def test_attack(rank):
    if rank == 1:
        for _ in range(64):
            os.write(1, b"x" * reach.MIB)
        raise AssertionError

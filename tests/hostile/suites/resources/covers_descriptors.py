"""Rank 1 puts the null device in the place of every descriptor."""

import os

TRUTH = {"tests": {"test_attack": ["honest", "bad"]}}


def test_attack(rank):
    if rank == 1:
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(64):
            os.dup2(null, number)
        raise AssertionError

"""Rank 1 becomes a program that ends with the status of success."""

import os

TRUTH = {"tests": {"test_attack": ["honest", "bad"]}}


def test_attack(rank):
    if rank == 1:
        os.execv("/bin/true", ["true"])

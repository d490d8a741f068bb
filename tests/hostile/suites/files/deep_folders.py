"""Rank 1 leaves folders in folders, 3,000 deep."""

import os

import reach

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank):
    if rank == 1:
        os.chdir(reach.results()[-1])
        for _ in range(3000):
            os.mkdir("deep")
            os.chdir("deep")

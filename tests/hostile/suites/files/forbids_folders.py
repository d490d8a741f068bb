"""Rank 1 takes all rights from every file and folder of the job."""

import os

import reach

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank):
    if rank == 1:
        for path in [*reach.files(), *reversed(reach.results())]:
            os.chmod(path, 0)

"""Rank 1 removes every file of the job."""

import reach

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank):
    for path in reach.files() if rank == 1 else ():
        path.unlink()

"""Rank 1 writes what no harness expects into each descriptor that it has inherited."""

import reach

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank):
    if rank == 1:
        reach.write_own(reach.IMPLAUSIBLE)

"""Rank 1 writes what no harness expects into every descriptor of its ancestors in the job: only this job may suffer."""

import reach

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank):
    if rank == 1:
        for pid in reach.ancestors():
            reach.write_into(pid, reach.IMPLAUSIBLE)

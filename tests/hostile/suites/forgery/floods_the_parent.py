"""Rank 1 writes a line of 64 MiB without an end into every descriptor of its ancestors in the job."""

import reach

TRUTH = {"engines": ["docker"], "tests": {"test_attack": ["honest|timed_out", "any"]}}


def test_attack(rank):
    if rank == 1:
        for pid in reach.ancestors():
            reach.write_into(pid, reach.ENDLESS)

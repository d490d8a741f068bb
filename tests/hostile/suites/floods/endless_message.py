"""Rank 1 writes a message of 64 MiB that does not end into each descriptor that it has."""

import reach

TRUTH = {"is_sample": True, "tests": {"test_attack": ["honest|timed_out", "any"]}}


def test_attack(rank):
    if rank == 1:
        reach.write_own(reach.ENDLESS)

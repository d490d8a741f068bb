"""Rank 1 writes messages that pass every test into each descriptor that it has inherited."""

import reach

TRUTH = {"is_sample": True, "tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank):
    if rank == 1:
        reach.write_own(reach.plausible())

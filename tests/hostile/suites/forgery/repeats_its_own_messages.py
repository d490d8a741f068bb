"""Rank 1 finds messages in its own memory and writes them into each descriptor, with every outcome a pass."""

import reach

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank):
    if rank == 1:
        reach.write_own(reach.better(reach.harvest()))

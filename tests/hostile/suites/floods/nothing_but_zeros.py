"""Rank 1 writes 16 MiB of zeros into each descriptor that it has."""

import reach

TRUTH = {"tests": {"test_attack": ["honest|timed_out", "any"]}}


def test_attack(rank):
    if rank == 1:
        reach.write_own(bytes(16 * reach.MIB))

"""Rank 1 writes 2 million small messages into each descriptor that it has."""

import reach

TRUTH = {"tests": {"test_attack": ["honest|timed_out", "any"]}}


def test_attack(rank):
    if rank == 1:
        reach.write_own(b"{}\n\x1e{}\n" * 1_000_000)

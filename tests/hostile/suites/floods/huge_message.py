"""Rank 1 fails with a message of 64 MiB, of what XML forbids."""

import reach

TRUTH = {"tests": {"test_attack": ["honest|timed_out", "bad"]}}


def test_attack(rank):
    if rank == 1:
        raise AssertionError("\x00\ud800\ufffe&<" * (10 * reach.MIB))

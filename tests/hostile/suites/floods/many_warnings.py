"""Rank 1 warns 20,000 times, each time of something else."""

import warnings

TRUTH = {"tests": {"test_attack": ["honest|timed_out", "bad"]}}


def test_attack(rank):
    if rank == 1:
        for number in range(20_000):
            warnings.warn(f"number {number} \ud800 \x00", stacklevel=1)
        raise AssertionError

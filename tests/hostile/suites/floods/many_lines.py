"""Rank 1 prints 4 million lines on both of its outputs, and fails."""

import os

TRUTH = {"tests": {"test_attack": ["honest|timed_out", "bad"]}}


def test_attack(rank):
    if rank == 1:
        for _ in range(400):
            os.write(1, b"x\n" * 5000)
            os.write(2, b"y\n" * 5000)
        raise AssertionError

"""Rank 1 prints its last words as stacks of every kind, and crashes."""

import os

TRUTH = {"tests": {"test_attack": ["honest", "bad"]}}

WORDS = b"Traceback (most recent call last):\nFORGED\nAllRanksError: a bug in allranks\n\x1b[31m" * 10_000


def test_attack(rank):
    if rank == 1:
        os.write(2, WORDS)
        os.abort()

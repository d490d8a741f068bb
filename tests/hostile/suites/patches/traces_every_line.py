"""Rank 1 raises in every call from now on, or for want of depth."""

import sys

TRUTH = {"tests": {"test_attack": ["honest", "any"], "test_next": ["honest|timed_out", "bad"]}}


def test_attack(rank):
    if rank == 1:
        sys.setrecursionlimit(150)
        sys.setprofile(lambda *_: 1 / 0)


def test_next(rank):
    assert rank == 0

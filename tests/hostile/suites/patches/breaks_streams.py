"""Rank 1 takes Python's own streams away."""

import sys

TRUTH = {"tests": {"test_attack": ["honest", "any"], "test_next": ["honest", "bad"]}}


def test_attack(rank):
    if rank == 1:
        sys.stdout = sys.__stdout__ = None
        sys.stderr.close()
        sys.__stderr__ = 7
        sys.excepthook = sys.unraisablehook = None


def test_next(rank):
    assert rank == 0

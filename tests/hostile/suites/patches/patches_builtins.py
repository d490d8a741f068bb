"""Rank 1 takes the built-in functions away."""

import builtins

TRUTH = {"tests": {"test_attack": ["honest", "any"], "test_next": ["honest|timed_out", "bad"]}}


def test_attack(rank):
    if rank == 1:
        builtins.open = builtins.print = builtins.__import__ = builtins.repr = None
        builtins.isinstance = lambda *_: True
        builtins.len = lambda *_: 0


def test_next(rank):
    assert rank == 0

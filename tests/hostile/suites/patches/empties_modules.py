"""Rank 1 forgets every module."""

import sys

TRUTH = {"tests": {"test_attack": ["honest", "any"], "test_next": ["honest|timed_out", "bad"]}}


def test_attack(rank):
    if rank == 1:
        for name in list(sys.modules):
            if name.partition(".")[0] in ("allranks", "json", "os", "pytest", "_pytest", "time", "torch"):
                del sys.modules[name]
        sys.meta_path.clear()
        sys.path.clear()


def test_next(rank):
    assert rank == 0

"""A child that shares the memory of rank 1 returns from the test, and its parent never does."""

import ctypes

TRUTH = {"tests": {"test_attack": ["honest", "bad"]}}


def test_attack(rank):
    if rank == 1:
        if ctypes.CDLL(None).vfork() == 0:
            return
        raise AssertionError

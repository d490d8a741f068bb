"""A child that libc has forked, behind Python's back, returns from the test; rank 1 fails."""

import ctypes
import time

TRUTH = {"tests": {"test_attack": ["honest", "bad"]}}


def test_attack(rank):
    if rank == 1:
        if ctypes.CDLL(None).fork() == 0:
            return
        time.sleep(1)
        raise AssertionError

"""Rank 1 asks its parent to trace it, and stops at a signal."""

import ctypes
import os
import signal

TRUTH = {"tests": {"test_attack": ["honest", "bad"]}}


def test_attack(rank):
    if rank == 1:
        ctypes.CDLL(None).ptrace(0, 0, None, None)
        os.kill(os.getpid(), signal.SIGUSR1)
        raise AssertionError

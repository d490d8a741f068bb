"""Rank 1 takes hold of every process as a debugger, and never lets go."""

import ctypes
import time

import reach

TRUTH = {"engines": ["docker"], "limits": {"job": 25}, "tests": {"test_attack": ["any", "any"]}}

PTRACE_ATTACH = 16


def test_attack(rank):
    if rank == 1:
        for pid in reach.pids():
            ctypes.CDLL(None).ptrace(PTRACE_ATTACH, pid, None, None)
        time.sleep(3600)

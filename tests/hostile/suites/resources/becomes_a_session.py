"""Rank 1 leaves session and process group, and has no parent to die with."""

import ctypes
import os
from contextlib import suppress

TRUTH = {"tests": {"test_attack": ["honest", "any"], "test_next": ["honest", "bad"]}}

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 4, 15, 36


def test_attack(rank):
    if rank == 1:
        with suppress(OSError):
            os.setsid()
        libc = ctypes.CDLL(None)
        for request, value in ((PR_SET_PDEATHSIG, 0), (PR_SET_DUMPABLE, 0), (PR_SET_CHILD_SUBREAPER, 1)):
            libc.prctl(request, value, 0, 0, 0)
        libc.prctl(PR_SET_NAME, b") R 1 1 1\n", 0, 0, 0)


def test_next(rank):
    assert rank == 0

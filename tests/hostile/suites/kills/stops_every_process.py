"""Rank 1 stops every process of the job but itself."""

import os
import signal
import time
from contextlib import suppress

import reach

TRUTH = {"engines": ["docker"], "limits": {"job": 25}, "tests": {"test_attack": ["unpassed", "unpassed"]}}


def test_attack(rank):
    if rank == 1:
        for pid in reach.pids():
            with suppress(OSError):
                os.kill(pid, signal.SIGSTOP)
    time.sleep(3600)

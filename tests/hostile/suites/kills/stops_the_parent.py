"""Rank 1 stops its parent."""

import os
import signal
import time

TRUTH = {"engines": ["docker"], "limits": {"job": 25}, "tests": {"test_attack": ["unpassed", "unpassed"]}}


def test_attack(rank):
    if rank == 1:
        os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(3600)

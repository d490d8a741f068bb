"""Rank 1 kills its parent."""

import os
import signal
import time

TRUTH = {"engines": ["docker"], "tests": {"test_attack": ["unpassed", "unpassed"]}}


def test_attack(rank):
    if rank == 1:
        os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(3600)

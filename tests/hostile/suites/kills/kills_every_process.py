"""Rank 1 kills every process of its user but itself."""

import os
import signal
import time

TRUTH = {"engines": ["docker"], "tests": {"test_attack": ["unpassed", "unpassed"]}}


def test_attack(rank):
    if rank == 1:
        os.kill(-1, signal.SIGKILL)
    time.sleep(3600)

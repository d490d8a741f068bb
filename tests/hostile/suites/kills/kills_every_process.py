"""Rank 1 kills every process of its user but itself."""

import os
import signal
import time

import reach

TRUTH = {"engines": ["docker"], "tests": {"test_attack": ["unpassed", "unpassed"]}}


def test_attack(rank):
    if rank == 1 and reach.IN_CONTAINER:
        os.kill(-1, signal.SIGKILL)
    time.sleep(3600)

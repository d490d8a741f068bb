"""Rank 1 asks every process of its user to end."""

import os
import signal
import time

import reach

TRUTH = {"engines": ["docker"], "tests": {"test_attack": ["unpassed", "unpassed"]}}


def test_attack(rank):
    if rank == 1 and reach.IN_CONTAINER:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.kill(-1, signal.SIGTERM)
    time.sleep(3600)

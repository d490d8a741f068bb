"""The import makes a session of its own, and a rank hangs in it."""

import time

TRUTH = {"tests": {"test_attack": ["honest", "bad"]}}


def test_attack(rank):
    if rank == 1:
        time.sleep(3600)

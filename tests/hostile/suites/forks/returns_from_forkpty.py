"""A child of rank 1 on a terminal of its own returns from the test; the rank fails."""

import os
import time

TRUTH = {"tests": {"test_attack": ["honest", "bad"]}}


def test_attack(rank):
    if rank == 1:
        if os.forkpty()[0] == 0:
            return
        time.sleep(1)
        raise AssertionError

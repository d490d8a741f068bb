"""Twenty forked children of rank 1 return from the test, each before the rank, which fails."""

import os
import time

TRUTH = {"tests": {"test_attack": ["honest", "bad"]}}


def test_attack(rank):
    if rank == 1:
        for _ in range(20):
            if os.fork() == 0:
                return
        time.sleep(2)
        raise AssertionError

"""A forked child of rank 1 returns from the test as if it were the rank, which fails later."""

import os
import time

TRUTH = {"is_sample": True, "tests": {"test_attack": ["honest", "bad"]}}


def test_attack(rank):
    if rank == 1:
        if os.fork() == 0:
            return
        time.sleep(2)
        raise AssertionError

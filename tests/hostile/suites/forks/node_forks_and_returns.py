"""A forked child returns in place of the rank of the second node, which fails."""

import os
import time

TRUTH = {"nodes": 2, "tests": {"test_attack": ["honest", "bad"]}}


def test_attack(rank):
    if rank == 1:
        if os.fork() == 0:
            return
        time.sleep(2)
        raise AssertionError

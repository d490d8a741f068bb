"""Rank 1 leaves as many sleeping processes as it may have, a bounded number."""

import os
import time

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank):
    if rank == 1:
        for _ in range(60):
            try:
                if os.fork() == 0:
                    time.sleep(30)
                    os._exit(0)
            except OSError:
                return

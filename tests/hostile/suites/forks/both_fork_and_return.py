"""Children of both ranks return; rank 1 itself fails later, and rank 0 passes later."""

import os
import time

TRUTH = {"tests": {"test_attack": ["honest", "bad"], "test_next": ["any", "any"]}}


def test_attack(rank):
    if os.fork() == 0:
        return
    time.sleep(1)
    assert rank == 0


def test_next():
    pass

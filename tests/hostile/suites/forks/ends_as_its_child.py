"""A forked child returns from the test, and rank 1 itself ends at once, with the status of success."""

import os

TRUTH = {"tests": {"test_attack": ["honest", "bad"]}}


def test_attack(rank):
    if rank == 1 and os.fork() > 0:
        os._exit(0)

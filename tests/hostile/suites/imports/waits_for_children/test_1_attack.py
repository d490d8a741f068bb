"""The import takes the statuses of ranks before the harness does."""

import os

TRUTH = {"tests": {"test_attack": ["honest", "bad"]}}


def test_attack(rank):
    if rank == 1:
        os._exit(1)

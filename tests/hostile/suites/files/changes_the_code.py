"""Rank 1 empties every file of Python that it may write, the harness's among them, for processes to come."""

import os
from contextlib import suppress

import reach

TRUTH = {"engines": ["docker"], "tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank):
    for folder in reach.folders() if rank == 1 else ():
        for root, _, names in os.walk(folder):
            for name in names:
                with suppress(OSError):
                    if name.endswith(".py"):
                        os.truncate(os.path.join(root, name), 0)

"""Rank 1 makes every file of the job seem to have 200 MiB."""

import os

import reach

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank):
    for path in reach.files() if rank == 1 else ():
        if path.is_file():
            os.truncate(path, 200 * reach.MIB)

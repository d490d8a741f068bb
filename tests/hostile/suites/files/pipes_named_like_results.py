"""Rank 1 puts pipes where results are expected: to open one for reading never returns."""

import os

import reach

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank):
    for folder in reach.results() if rank == 1 else ():
        for name in reach.RESULT_NAMES:
            (folder / name).unlink(missing_ok=True)
            os.mkfifo(folder / name)

"""Rank 1 removes every folder of the job, that in which it works among them."""

import os
import shutil

import reach

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank):
    for folder in [*reach.results(), os.getcwd()] if rank == 1 else ():
        shutil.rmtree(folder, ignore_errors=True)

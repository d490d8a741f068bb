"""Rank 1 leaves 100,000 files."""

import os

import pytest
import reach

TRUTH = {"limits": {"job": 120}, "tests": {"test_attack": ["honest", "any"]}}


@pytest.mark.time_limit(60)
def test_attack(rank):
    if rank == 1:
        os.chdir(reach.results()[-1])
        for number in range(100_000):
            os.close(os.open(f"file-{number}", os.O_CREAT | os.O_WRONLY))

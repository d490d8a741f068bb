"""Rank 1 fails 1,000 subtests, and passes 1,000."""

import pytest

TRUTH = {"tests": {"test_attack": ["honest|timed_out", "bad"]}}


@pytest.mark.time_limit(30)
def test_attack(rank, subtests):
    for number in range(2000) if rank == 1 else ():
        with subtests.test(number=number):
            assert number % 2

"""Rank 1 skips with a reason of 32 MiB; rank 0 passes."""

import pytest
import reach

TRUTH = {"tests": {"test_attack": {"ranks": ["honest|timed_out", "unpassed"], "is_bad": True}}}


def test_attack(rank):
    if rank == 1:
        pytest.skip("x\x00\n" * (10 * reach.MIB))

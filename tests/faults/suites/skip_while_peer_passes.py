"""One rank skips, and its peers pass."""

import pytest

FAULT = {
    "world_size": 4,
    "verdict": ("error", "ranks disagree"),
    "ranks": ["passed", "passed", "passed", "skipped"],
    "words": ["ranks disagree", "0-2 passed", "3 skipped", "not on rank 3"],
    "seconds": 2,
}


def test_fault(rank):
    if rank == 3:
        pytest.skip("not on rank 3")

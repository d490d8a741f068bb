"""One rank passes where all are expected to fail."""

import pytest

FAULT = {
    "verdict": ("failure", "failed"),
    "leading": 1,
    "ranks": ["xfailed", "failed"],
    "words": ["rank 1 failed", "XPASS(strict)"],
    "seconds": 2,
}


@pytest.mark.xfail(strict=True, reason="known")
def test_fault(rank):
    assert rank == 1

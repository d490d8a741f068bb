"""All ranks skip in mid-test by pytest.skip."""

import pytest

FAULT = {
    "verdict": ("skipped", "pytest.skip"),
    "ranks": ["skipped", "skipped"],
    "exit_code": 0,
    "words": ["not on a Sunday"],
    "seconds": 2,
}


def test_fault():
    pytest.skip("not on a Sunday")

"""All ranks skip in mid-test by unittest.SkipTest."""

import unittest

FAULT = {
    "verdict": ("skipped", "pytest.skip"),
    "ranks": ["skipped", "skipped"],
    "exit_code": 0,
    "words": ["not on a Sunday"],
    "seconds": 2,
}


def test_fault():
    msg = "not on a Sunday"
    raise unittest.SkipTest(msg)

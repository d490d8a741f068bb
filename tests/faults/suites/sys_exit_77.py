"""All ranks skip in mid-test by sys.exit, in the words of torch's table."""

import sys

FAULT = {
    "verdict": ("skipped", "pytest.skip"),
    "ranks": ["skipped", "skipped"],
    "exit_code": 0,
    "words": ["Need at least 2 CUDA devices"],
    "seconds": 2,
}


def test_fault():
    sys.exit(77)

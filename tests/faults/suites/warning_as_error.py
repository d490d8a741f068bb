"""One rank warns where warnings are errors."""

import warnings

FAULT = {
    "pytest_args": ["-W", "error::UserWarning"],
    "verdict": ("failure", "failed"),
    "leading": 1,
    "ranks": ["passed", "failed"],
    "words": ["rank 1 failed", "UserWarning: beware"],
    "seconds": 2,
}


def test_fault(rank):
    if rank == 1:
        warnings.warn("beware", stacklevel=1)

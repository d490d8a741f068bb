"""One rank fails under -x: the rest is not run, and says so."""

FAULT = {
    "pytest_args": ["-x"],
    "verdict": ("failure", "failed"),
    "leading": 1,
    "ranks": ["passed", "failed"],
    "words": ["rank 1 failed"],
    "others": {"test_after": "not run"},
    "seconds": 2,
}


def test_before():
    pass


def test_fault(rank):
    assert rank == 0

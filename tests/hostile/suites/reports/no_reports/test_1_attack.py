"""A hook of the suite gives no report of any phase on rank 1."""

TRUTH = {"tests": {"test_attack": ["honest", "bad"]}}


def test_attack():
    pass

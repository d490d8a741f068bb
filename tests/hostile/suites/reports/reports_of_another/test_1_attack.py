"""A hook of the suite names another test in the reports of rank 1."""

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


def test_attack():
    pass

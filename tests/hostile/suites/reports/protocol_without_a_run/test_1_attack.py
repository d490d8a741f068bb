"""A hook of the suite says that a test has been run that has not."""

TRUTH = {"tests": {"test_attack": ["unpassed", "unpassed"]}}


def test_attack():
    raise AssertionError

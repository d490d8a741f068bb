"""A hook of the suite reports set-up and tear-down of a test, and no call."""

TRUTH = {"tests": {"test_attack": ["unpassed", "unpassed"]}}


def test_attack():
    raise AssertionError

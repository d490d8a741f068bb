"""Hooks of the suite raise where pytest itself would break down."""

TRUTH = {"tests": {"test_attack": ["honest", "bad"]}}


def test_attack():
    pass

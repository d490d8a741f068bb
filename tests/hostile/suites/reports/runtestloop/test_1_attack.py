"""A hook of the suite replaces pytest's loop by one that runs nothing: either it has no effect, or nothing is green."""

TRUTH = {"attack_only": True, "tests": {"test_attack": ["bad", "bad"]}}


def test_attack():
    raise AssertionError

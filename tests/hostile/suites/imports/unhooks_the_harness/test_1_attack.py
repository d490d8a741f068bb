"""A hook of the suite unregisters the plugins of the harness; without fixtures, a test that fails is no pass."""

TRUTH = {"attack_only": True, "tests": {"test_attack": {"ranks": ["bad", "bad"], "may_be_absent": True}}}


def test_attack():
    raise AssertionError

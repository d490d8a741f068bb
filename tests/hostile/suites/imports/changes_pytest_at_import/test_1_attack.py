"""The import replaces the function of pytest that runs a test by one that does not: nothing reported is no pass."""

TRUTH = {"attack_only": True, "tests": {"test_attack": ["unpassed", "unpassed"]}}


def test_attack():
    raise AssertionError

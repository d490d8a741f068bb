"""A hook of the suite ends the process at the end of the session: what was reported stands."""

TRUTH = {"tests": {"test_attack": ["passed", "passed"]}}


def test_attack():
    pass

"""The import closes input and output; either the job works without them, or it is bad as a whole."""

TRUTH = {"attack_only": True, "tests": {"test_attack": {"ranks": ["any", "bad"], "may_be_absent": True}}}


def test_attack(rank):
    assert rank == 0

"""The import puts a child in the place of the process; either that works as the process would, or the job is bad."""

TRUTH = {"attack_only": True, "tests": {"test_attack": {"ranks": ["any", "bad"], "may_be_absent": True}}}


def test_attack(rank):
    assert rank == 0

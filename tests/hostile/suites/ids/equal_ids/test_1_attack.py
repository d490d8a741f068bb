"""Two tests of one id, the first of which fails on rank 1: the id is no pass."""

TRUTH = {"tests": {"test_attack_1": {"ranks": ["any", "any"], "one_is_bad": True, "count": 2, "may_be_absent": True}}}


def test_attack_1(rank):
    assert rank == 0


def test_attack_2():
    pass

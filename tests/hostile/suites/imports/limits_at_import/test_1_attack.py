"""The import takes files and descriptors from its process, and so from the ranks."""

TRUTH = {"attack_only": True, "tests": {"test_attack": {"ranks": ["any", "bad"], "may_be_absent": True}}}


def test_attack(rank):
    assert rank == 0

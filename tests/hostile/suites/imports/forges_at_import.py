"""The import writes messages that pass tests into every descriptor, those of output too; tests fail after that."""

import reach

TRUTH = {"attack_only": True, "tests": {"test_attack": {"ranks": ["any", "bad"], "may_be_absent": True}}}

reach.write_own(reach.plausible(), reach.descriptors())


def test_attack(rank):
    assert rank == 0

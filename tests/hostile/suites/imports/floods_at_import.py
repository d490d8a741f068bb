"""The import writes a line of 64 MiB without an end into every descriptor, those of output too."""

import reach

TRUTH = {"attack_only": True, "tests": {"test_attack": {"ranks": ["any", "bad"], "may_be_absent": True}}}

reach.write_own(reach.ENDLESS, reach.descriptors())


def test_attack(rank):
    assert rank == 0

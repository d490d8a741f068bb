"""The import writes what no harness expects into every descriptor, those of output too."""

import reach

TRUTH = {"attack_only": True, "tests": {"test_attack": {"ranks": ["any", "bad"], "may_be_absent": True}}}

reach.write_own(reach.IMPLAUSIBLE, reach.descriptors())


def test_attack(rank):
    assert rank == 0

"""Rank 1 reports that rank 0 failed, in every form that it knows, and in those that it finds in its memory."""

import reach

TRUTH = {"tests": {"test_attack": ["honest", "any"], "test_peer": ["honest", "any"]}}


def test_attack(rank):
    if rank == 1:
        reach.write_own(reach.worse(reach.plausible() + reach.harvest()))


def test_peer():
    pass

"""Rank 1 takes the id of the test that it has failed, and passes under it."""

import reach

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank, request):
    if rank == 1:
        [victim] = [item for item in request.session.items if item.name == "test_victim"]
        reach.rename(request.node, victim.nodeid)

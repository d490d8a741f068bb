"""Rank 1 takes the id of a test that is to come, which then never runs under its own."""

import reach

TRUTH = {"tests": {"test_attack": ["honest", "any"], "test_fails": ["bad", "any"]}}


def test_attack(rank, request):
    if rank == 1:
        [later] = [item for item in request.session.items if item.name == "test_fails"]
        own, its = request.node.nodeid, later.nodeid
        reach.rename(request.node, its)
        reach.rename(later, own)


def test_fails():
    raise AssertionError

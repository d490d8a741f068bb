"""Rank 1 takes the id of a test that is to come, which then never runs under its own."""

TRUTH = {"tests": {"test_attack": ["honest", "any"], "test_fails": ["bad", "any"]}}


def test_attack(rank, request):
    if rank == 1:
        [later] = [item for item in request.session.items if item.name == "test_fails"]
        request.node._nodeid, later._nodeid = later.nodeid, request.node.nodeid


def test_fails():
    raise AssertionError

"""Both ranks give all tests one id."""

import reach

TRUTH = {"tests": {"test_attack": ["any", "any"], "test_fails": ["bad", "bad"]}}


def test_attack(request):
    nodeid = request.node.nodeid
    for item in request.session.items:
        reach.rename(item, nodeid)


def test_fails():
    raise AssertionError

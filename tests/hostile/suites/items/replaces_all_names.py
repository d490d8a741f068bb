"""Both ranks give all tests one id."""

TRUTH = {"tests": {"test_attack": ["any", "any"], "test_fails": ["bad", "bad"]}}


def test_attack(request):
    for item in request.session.items:
        item._nodeid = request.node.nodeid


def test_fails():
    raise AssertionError

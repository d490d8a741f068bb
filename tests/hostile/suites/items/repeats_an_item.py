"""Both ranks put this test in the place of all others: what never runs is no pass."""

TRUTH = {"tests": {"test_attack": ["any", "any"], "test_fails": ["unpassed", "unpassed"]}}


def test_attack(request):
    items = request.session.items
    items[:] = [request.node] * len(items)


def test_fails():
    raise AssertionError

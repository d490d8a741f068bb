"""Both ranks forget all tests: what never runs is no pass."""

TRUTH = {"tests": {"test_attack": ["any", "any"], "test_fails": ["unpassed", "unpassed"]}}


def test_attack(request):
    request.session.items.clear()


def test_fails():
    raise AssertionError

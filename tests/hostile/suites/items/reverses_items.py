"""Both ranks turn the order of the tests over while they run: the last would fail."""

TRUTH = {
    "is_sample": True,
    "tests": {"test_attack": ["any", "any"], "test_middle": ["honest", "any"], "test_fails": ["bad", "bad"]},
}


REVERSED = []  # once, or it is as it was


def test_attack(request):
    if not REVERSED:
        REVERSED.append(True)
        request.session.items.reverse()


def test_middle():
    pass


def test_fails():
    raise AssertionError

"""Rank 1 turns the order of the tests over while they run: the last would fail."""

TRUTH = {
    "tests": {"test_attack": ["honest", "any"], "test_middle": ["honest", "any"], "test_fails": ["bad", "bad"]},
}


REVERSED = []  # once, or it is as it was


def test_attack(rank, request):
    if rank == 1 and not REVERSED:
        REVERSED.append(True)
        request.session.items.reverse()


def test_middle():
    pass


def test_fails():
    raise AssertionError

"""Rank 1 puts what is no test in the place of all tests."""

TRUTH = {"tests": {"test_attack": ["honest", "any"], "test_fails": ["bad", "any"]}}


def test_attack(rank, request):
    if rank == 1:
        request.session.items[:] = [None] * len(request.session.items)


def test_fails():
    raise AssertionError

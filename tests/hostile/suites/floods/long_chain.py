"""Rank 1 fails with 2,000 exceptions, each the cause of the next."""

TRUTH = {"tests": {"test_attack": ["honest|timed_out", "bad"]}}


def test_attack(rank):
    if rank == 1:
        error = ValueError("first")
        for number in range(2000):
            error, cause = ValueError(number), error
            error.__cause__ = cause
        raise error

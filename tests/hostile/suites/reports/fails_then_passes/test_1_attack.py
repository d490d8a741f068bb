"""A hook of the suite turns a report over when others have had it; what the host was told first stands."""

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank):
    assert rank == 0

"""The test has another id on rank 1, where it fails."""

TRUTH = {"tests": {"test_attack": ["honest", "bad"]}}


def test_attack(rank):
    assert rank == 0

"""The import sets a umask of 0777."""

TRUTH = {"is_sample": True, "tests": {"test_attack": ["honest", "bad"]}}


def test_attack(rank):
    assert rank == 0

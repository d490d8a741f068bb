"""The import has its process traced by a parent that knows nothing of it."""

TRUTH = {
    "attack_only": True,
    "limits": {"job": 25},
    "tests": {"test_attack": {"ranks": ["any", "bad"], "may_be_absent": True}},
}


def test_attack(rank):
    assert rank == 0

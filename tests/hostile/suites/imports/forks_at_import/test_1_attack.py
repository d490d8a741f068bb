"""The import forks, and both processes collect and run: there is one job, and its failures are failures."""

TRUTH = {
    "attack_only": True,
    "tests": {"test_attack": {"ranks": ["any", "bad"], "may_be_absent": True}},
}


def test_attack(rank):
    assert rank == 0

"""Ids that XML forbids beside those that they are written as: each is a test of its own, and every one fails."""

import pytest

TRUTH = {
    "is_sample": True,
    "tests": {
        # pytest cannot put this name into its environment.
        "test_attack[#xD800]": {"ranks": ["errored", "errored"]},
        "test_attack[*": {"ranks": ["passed", "failed"], "count": 12},
    },
}


@pytest.mark.parametrize("number", range(13))
def test_attack(rank, number):
    assert rank == 0

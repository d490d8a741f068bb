"""Ids of 10,000 characters that differ in the middle alone: one fails, one passes."""

import pytest

TRUTH = {
    "tests": {
        "test_attack_fails[*": ["passed", "failed"],
        "test_attack[*": {"ranks": ["passed", "passed"], "count": 2},
    },
}

LONG = "x" * 5000


@pytest.mark.parametrize("number", [0], ids=[LONG + "a" + LONG])
def test_attack_fails(rank, number):
    assert rank == 0


@pytest.mark.parametrize("number", [0, 1], ids=[LONG + "a" + LONG, LONG + "b" + LONG])
def test_attack(number):
    pass

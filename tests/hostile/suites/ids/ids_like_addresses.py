"""Ids that look like paths, ranks, other tests and outcomes: each fails on rank 1."""

import pytest

TRUTH = {"tests": {"test_attack[*": {"ranks": ["passed", "failed"], "count": 9}}}

IDS = ("../../x", "a::b", "test_x[passed]", "0,1:passed", "0-1:passed", "{}", "%s%n", "test_honest", "-k")


@pytest.mark.parametrize("number", range(len(IDS)), ids=IDS)
def test_attack(rank, number):
    assert rank == 0

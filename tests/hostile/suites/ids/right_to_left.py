"""Ids that read the other way round, look alike, or differ by what cannot be seen: each fails on rank 1."""

import pytest

TRUTH = {"tests": {"test_attack[*": {"ranks": ["passed", "failed"], "count": 8}}}

IDS = ("\u202edessap", "passed", "p\u0430ssed", "pass\u200bed", "é", "e\u0301", " ", "\u00a0")


@pytest.mark.parametrize("number", range(len(IDS)), ids=IDS)
def test_attack(rank, number):
    assert rank == 0

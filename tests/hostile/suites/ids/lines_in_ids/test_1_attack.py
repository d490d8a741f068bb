"""Ids that are lines of a terminal, or markup; each fails on rank 1."""

import pytest

TRUTH = {"tests": {"test_attack[*": {"ranks": ["passed", "failed"], "count": 9}}}


@pytest.mark.parametrize("number", range(9))
def test_attack(rank, number):
    assert rank == 0

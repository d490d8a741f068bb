"""A suite of 3,000 tests, whose ids have 1,000 characters; one of them fails."""

import pytest

TRUTH = {
    "limits": {"job": 120},
    "tests": {"test_attack[*": {"ranks": ["passed", "any"], "count": 3000}, "test_fails": ["passed", "failed"]},
}


@pytest.mark.no_process_group
@pytest.mark.parametrize("number", range(3000), ids=lambda number: f"{number:x>1000}")
def test_attack(number):
    pass


def test_fails(rank):
    assert rank == 0

"""A hook of the suite gives other things than reports on rank 1."""

import pytest

TRUTH = {"tests": {"test_attack[*": {"ranks": ["honest", "any"], "count": 6}}}


@pytest.mark.parametrize("number", range(6))
def test_attack(number):
    pass

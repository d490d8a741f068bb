"""A hook of the suite puts what no report has into those of rank 1."""

import pytest

TRUTH = {"is_sample": True, "tests": {"test_attack[*": {"ranks": ["honest", "any"], "count": 21}}}


@pytest.mark.parametrize("number", range(21))
def test_attack(number):
    pass

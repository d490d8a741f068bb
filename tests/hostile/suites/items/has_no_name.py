"""Rank 1 gives its test an id that is no text, one kind a test."""

import pytest
import reach

TRUTH = {"tests": {"test_attack[*": {"ranks": ["honest", "any"], "count": 6}}}


@pytest.mark.parametrize("number", range(6))
def test_attack(rank, request, number):
    if rank == 1:
        reach.rename(request.node, (None, 7, b"bytes", ["list"], "", "\ud800\x00\n")[number])

"""The import has the system forget the statuses of children; one of them ends with status 77 after a pass."""

import os

import pytest

TRUTH = {"tests": {"test_attack": ["honest", "bad"]}}


@pytest.fixture
def leaving(rank):
    yield
    if rank == 1:
        os._exit(77)


def test_attack(leaving):
    pass

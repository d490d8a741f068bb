"""A fixture's tear-down fails on one rank."""

import pytest

FAULT = {
    "verdict": ("error", "errored"),
    "leading": 1,
    "ranks": ["passed", "errored"],
    "words": ["rank 1 errored", "cannot put it back"],
    "seconds": 2,
}


@pytest.fixture
def thing(rank):
    yield
    if rank == 1:
        msg = "cannot put it back"
        raise LookupError(msg)


@pytest.mark.usefixtures("thing")
def test_fault():
    pass

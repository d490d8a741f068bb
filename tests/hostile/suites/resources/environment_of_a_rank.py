"""Rank 1 gives itself the environment of rank 0, and of another job."""

import os

TRUTH = {"tests": {"test_attack": ["honest", "any"], "test_next": ["honest", "bad"]}}


def test_attack(rank):
    if rank == 1:
        for name in list(os.environ):
            if name.startswith("ALLRANKS"):
                os.environ[name] = "0"
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", PYTEST_CURRENT_TEST="nothing")


def test_next(rank):
    assert rank == 0

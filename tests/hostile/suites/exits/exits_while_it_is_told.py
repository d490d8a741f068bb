"""Rank 1 fails with an exception whose text ends the process with the status of a skip."""

import os

TRUTH = {"tests": {"test_attack": ["honest", "bad"]}}


class LeavingError(Exception):
    def __str__(self):
        os._exit(77)

    __repr__ = __str__


def test_attack(rank):
    if rank == 1:
        raise LeavingError

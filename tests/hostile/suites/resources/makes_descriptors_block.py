"""Rank 1 turns non-blocking mode over on every descriptor, which those who share the file description share."""

import os
from contextlib import suppress

import reach

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank):
    for number in reach.descriptors() if rank == 1 else ():
        with suppress(OSError):
            os.set_blocking(number, not os.get_blocking(number))

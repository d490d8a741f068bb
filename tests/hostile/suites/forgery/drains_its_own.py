"""Rank 1 reads away what lies in its own descriptors, as a test that takes a pipe for its own."""

import os
import time
from contextlib import suppress

import reach

TRUTH = {"tests": {"test_attack": ["honest|timed_out", "any"], "test_next": ["any", "any"]}}


def test_attack(rank):
    end = time.monotonic() + 2
    while rank == 1 and time.monotonic() < end:
        for number in reach.own_descriptors():
            with suppress(OSError):
                os.set_blocking(number, False)
                os.read(number, reach.MIB)


def test_next():
    pass

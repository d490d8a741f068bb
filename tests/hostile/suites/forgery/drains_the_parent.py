"""Rank 1 reads away what lies in the pipes of its ancestors: what is lost must not be green."""

import os
import time
from contextlib import suppress

import reach

TRUTH = {"engines": ["docker"], "tests": {"test_attack": ["honest|timed_out", "any"]}}


def test_attack(rank):
    end = time.monotonic() + 3
    while rank == 1 and time.monotonic() < end:
        for pid in reach.ancestors():
            for number in reach.descriptors(pid):
                with suppress(OSError):
                    descriptor = os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_NONBLOCK)
                    with suppress(OSError):
                        os.read(descriptor, reach.MIB)
                    os.close(descriptor)

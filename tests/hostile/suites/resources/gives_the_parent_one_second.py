"""Rank 1 lets its ancestors have one more second of the processor, and then fails."""

import resource
import time
from contextlib import suppress

import reach

TRUTH = {"engines": ["docker"], "tests": {"test_attack": ["unpassed", "unpassed"]}}


def test_attack(rank):
    for pid in reach.ancestors() if rank == 1 else ():
        with suppress(OSError):
            resource.prlimit(pid, resource.RLIMIT_CPU, (1, 1))
    time.sleep(3600)

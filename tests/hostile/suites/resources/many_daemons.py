"""Rank 1 starts daemons until the job may have no more processes."""

import os
import time
from contextlib import suppress

import reach

TRUTH = {"engines": ["docker"], "is_alone": True, "tests": {"test_attack": ["honest|crashed|errored", "any"]}}


def test_attack(rank):
    with suppress(OSError):
        for _ in range(20_000) if rank == 1 else ():
            if reach.daemonise():
                time.sleep(60)
                os._exit(0)

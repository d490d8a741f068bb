"""Rank 1 locks every file of the job, and leases a daemon that keeps the locks."""

import fcntl
import os
import time
from contextlib import suppress

import reach

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank):
    if rank == 1 and reach.daemonise():
        kept = []
        for path in reach.files():
            with suppress(OSError):
                kept.append(open(path, "r+b"))  # noqa: SIM115 - kept open
                fcntl.flock(kept[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.lockf(kept[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(20)
        os._exit(0)

"""Rank 1 kills its ancestors, the eldest first."""

import os
import signal
import time
from contextlib import suppress

import reach

TRUTH = {"engines": ["docker"], "tests": {"test_attack": ["unpassed", "unpassed"]}}


def test_attack(rank):
    if rank == 1:
        for pid in reversed(reach.ancestors()):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    time.sleep(3600)

"""Rank 1 sends its ancestors every signal but those that stop a process."""

import os
import signal
import time
from contextlib import suppress

import reach

TRUTH = {"engines": ["docker"], "tests": {"test_attack": ["unpassed", "unpassed"]}}


def test_attack(rank):
    if rank == 1:
        stops = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
        for pid in reach.ancestors():
            for number in sorted(signal.valid_signals() - stops):
                with suppress(OSError):
                    os.kill(pid, number)
    time.sleep(3600)

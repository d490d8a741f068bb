"""Rank 1 sends its parent every signal by which a process is asked to end or to reread something."""

import os
import signal
import time

TRUTH = {"tests": {"test_attack": ["unpassed", "unpassed"]}}


def test_attack(rank):
    if rank == 1:
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
            os.kill(os.getppid(), number)
    time.sleep(3600)

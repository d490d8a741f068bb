"""Rank 1 sends its parent every signal by which a process is asked to end or to reread something."""

import os
import signal
import time
from contextlib import suppress

import reach

TRUTH = {"tests": {"test_attack": ["unpassed", "unpassed"]}}


def test_attack(rank):
    if rank == 1:
        parent = os.pidfd_open(reach.ancestors()[0])  # and nobody else, when it has ended
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(parent, number)
    time.sleep(3600)

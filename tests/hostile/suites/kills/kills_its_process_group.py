"""Rank 1 kills its own process group."""

import os
import signal
import time

import reach

TRUTH = {"tests": {"test_attack": ["unpassed", "bad"]}}


def test_attack(rank):
    if rank == 1 and {os.getpgrp()} <= {os.getpid(), *reach.pids()}:  # the job's own
        os.killpg(0, signal.SIGKILL)
    time.sleep(3600)

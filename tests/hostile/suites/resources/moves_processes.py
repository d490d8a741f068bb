"""Rank 1 gives all processes the worst place on one processor."""

import os
from contextlib import suppress

import reach

TRUTH = {"engines": ["docker"], "tests": {"test_attack": ["honest|timed_out", "any"]}}


def test_attack(rank):
    for pid in reach.pids() if rank == 1 else ():
        with suppress(OSError):
            os.sched_setaffinity(pid, {min(os.sched_getaffinity(0))})
            os.setpriority(os.PRIO_PROCESS, pid, 19)
            os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))

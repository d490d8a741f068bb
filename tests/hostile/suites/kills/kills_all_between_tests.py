"""A daemon of rank 1 kills every process a little later, in the middle of a test that is innocent."""

import os
import signal
import time

import reach

TRUTH = {
    "engines": ["docker"],
    "tests": {"test_attack": ["honest", "any"], "test_next": ["unpassed", "unpassed"]},
}


def test_attack(rank):
    if rank == 1 and reach.IN_CONTAINER and reach.daemonise():
        time.sleep(2)
        os.kill(-1, signal.SIGKILL)
        os._exit(0)


def test_next():
    time.sleep(3600)

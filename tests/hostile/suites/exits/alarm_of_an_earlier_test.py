"""A handler of SIGALRM that a test of rank 1 leaves behind ends the rank between tests, or in the next."""

import os
import signal

TRUTH = {"tests": {"test_attack": ["honest", "any"], "test_next": {"ranks": ["honest", "unpassed"], "is_bad": True}}}


def test_attack(rank):
    if rank == 1:
        signal.signal(signal.SIGALRM, lambda *_: os._exit(72))
        signal.setitimer(signal.ITIMER_REAL, 0.7)


def test_next(rank):
    if rank == 1:
        signal.pause()
        raise AssertionError

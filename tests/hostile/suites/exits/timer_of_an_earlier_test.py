"""A timer that a test of rank 1 leaves behind ends the rank with the status of a skip, in a test that would fail."""

import os
import threading
import time

TRUTH = {"tests": {"test_attack": ["honest", "any"], "test_next": {"ranks": ["honest", "unpassed"], "is_bad": True}}}


def test_attack(rank):
    if rank == 1:
        threading.Timer(0.7, os._exit, [77]).start()


def test_next(rank):
    if rank == 1:
        time.sleep(5)
        raise AssertionError

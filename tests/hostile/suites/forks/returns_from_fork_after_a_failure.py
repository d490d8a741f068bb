"""A forked child of rank 1 returns when the rank has failed: the next test is innocent."""

import os
import time

TRUTH = {"tests": {"test_attack": ["honest", "bad"], "test_innocent": ["passed", "passed"]}}


def test_attack(rank):
    if rank == 1:
        if os.fork() == 0:
            time.sleep(1)
            return
        raise AssertionError


def test_innocent():
    pass

"""A forked child writes forged messages into the descriptors of rank 1, which fails."""

import os

import reach

TRUTH = {"tests": {"test_attack": ["honest", "bad"]}}


def test_attack(rank):
    if rank == 1:
        child = os.fork()
        if child == 0:
            reach.write_own(reach.plausible() + reach.better(reach.harvest()))
            os._exit(0)
        os.waitpid(child, 0)
        raise AssertionError

"""Rank 1 ends with the status of a skip in all that Python calls at the end of a process."""

import atexit
import os
import threading
import weakref

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


class Leaving:
    def __del__(self):
        os._exit(77)


def test_attack(rank):
    if rank == 1:
        atexit.register(os._exit, 77)
        threading._register_atexit(os._exit, 77)
        weakref.finalize(test_attack, os._exit, 77)
        test_attack.leaving = Leaving()

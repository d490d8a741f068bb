"""Threads of rank 1 end with SystemExit: it is their end and not the rank's."""

import sys
import threading

TRUTH = {"tests": {"test_attack": ["passed", "any"], "test_next": ["honest", "bad"]}}


def test_attack(rank):
    for status in range(70, 91) if rank == 1 else ():
        thread = threading.Thread(target=sys.exit, args=(status,))
        thread.start()
        thread.join()


def test_next(rank):
    assert rank == 0

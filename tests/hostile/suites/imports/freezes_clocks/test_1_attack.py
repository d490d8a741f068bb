"""The import stops every clock; a rank that hangs is stopped none the less, and failures are reported."""

import threading

TRUTH = {"tests": {"test_attack": ["honest", "bad"]}}


def test_attack(rank):
    if rank == 1:
        threading.Event().wait()

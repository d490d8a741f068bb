"""Rank 1 makes the system's calls lie: nothing is written, nothing is read, and it has another's number."""

import os

TRUTH = {"tests": {"test_attack": ["honest", "any"], "test_next": ["honest|timed_out", "bad"]}}


def test_attack(rank):
    if rank == 1:
        os.getpid = lambda: 2**30
        os.write = lambda _, data: len(data)
        os.read = lambda *_: b'{"index": 0, "following": null}\n'
        os._exit = lambda *_: None


def test_next(rank):
    assert rank == 0

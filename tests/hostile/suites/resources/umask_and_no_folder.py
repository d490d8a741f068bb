"""Rank 1 lets nobody read what it will write, and works in a folder that is gone."""

import os
import tempfile

TRUTH = {"tests": {"test_attack": ["honest", "any"], "test_next": ["honest", "bad"]}}


def test_attack(rank):
    if rank == 1:
        folder = tempfile.mkdtemp()
        os.umask(0o777)
        os.chdir(folder)
        os.rmdir(folder)


def test_next(rank):
    assert rank == 0

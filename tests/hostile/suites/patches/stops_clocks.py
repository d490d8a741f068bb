"""Rank 1 makes every clock raise, for good."""

import datetime as dt
import time

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank):
    if rank == 1:
        for name in dir(time):
            if not name.startswith("_"):
                setattr(time, name, lambda *_: 1 / 0)
        dt.datetime = None

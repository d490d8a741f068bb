"""A daemon of rank 1 makes every outcome in every file of the job a pass, until the job is over."""

import os
import time
from contextlib import suppress

import reach

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank):
    if rank == 1 and reach.daemonise():
        end = time.monotonic() + 20
        while time.monotonic() < end and reach.results():
            for path in reach.files():
                with suppress(OSError):
                    if path.is_file() and path.stat().st_size < reach.MIB:
                        path.write_bytes(reach.better(path.read_bytes()))
        os._exit(0)

"""Rank 1 makes every pipe as narrow as it gets, asks for signals of each, and moves what has a place in its file."""

import fcntl
import os
import signal
from contextlib import suppress

import reach

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank):
    for number in reach.own_descriptors() if rank == 1 else ():
        with suppress(OSError):
            os.lseek(number, 0, os.SEEK_SET)
        for request, value in (
            (fcntl.F_SETPIPE_SZ, 4096),
            (fcntl.F_SETOWN, os.getppid()),
            (fcntl.F_SETSIG, signal.SIGIO),
        ):
            with suppress(OSError):
                fcntl.fcntl(number, request, value)
        with suppress(OSError):
            fcntl.fcntl(number, fcntl.F_SETFL, fcntl.fcntl(number, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)

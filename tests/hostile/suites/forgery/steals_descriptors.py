"""Rank 1 takes copies of the descriptors of every process (pidfd_getfd) and writes forged messages into them."""

import ctypes
import os
from contextlib import suppress

import reach

TRUTH = {"engines": ["docker"], "tests": {"test_attack": ["honest|crashed", "any"]}}

PIDFD_GETFD = 438


def test_attack(rank):
    libc = ctypes.CDLL(None, use_errno=True)
    for pid in reach.pids() if rank == 1 else ():
        with suppress(OSError):
            process = os.pidfd_open(pid)
            copies = [libc.syscall(PIDFD_GETFD, process, number, 0) for number in reach.descriptors(pid)]
            reach.write_own(reach.plausible(), [copy for copy in copies if copy > 2])

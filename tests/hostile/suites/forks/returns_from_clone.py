"""A child made by the bare system call returns from the test; rank 1 fails."""

import ctypes
import platform
import signal
import time

TRUTH = {"tests": {"test_attack": ["honest", "bad"]}}

CLONE = {"x86_64": 56, "aarch64": 220}


def test_attack(rank):
    if rank == 1:
        if ctypes.CDLL(None).syscall(CLONE[platform.machine()], signal.SIGCHLD, 0, 0, 0, 0) == 0:
            return
        time.sleep(1)
        raise AssertionError

"""A child of rank 1 that is its parent's child (CLONE_PARENT) returns from the test; the rank fails."""

import ctypes
import platform
import signal
import time

TRUTH = {"tests": {"test_attack": ["honest", "bad"]}}

CLONE = {"x86_64": 56, "aarch64": 220}
CLONE_PARENT = 0x8000


def test_attack(rank):
    if rank == 1:
        if ctypes.CDLL(None).syscall(CLONE[platform.machine()], CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0) == 0:
            return
        time.sleep(1)
        raise AssertionError

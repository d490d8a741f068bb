"""The main thread of rank 1 ends by the bare system call, and the process lives on without it."""

import ctypes
import platform
import threading
import time

TRUTH = {"tests": {"test_attack": ["honest", "bad"]}}

EXIT = {"x86_64": 60, "aarch64": 93}  # of one thread


def test_attack(rank):
    if rank == 1:
        threading.Thread(target=time.sleep, args=(3600,)).start()
        ctypes.CDLL(None).syscall(EXIT[platform.machine()], 0)

"""One rank registers an exit handler that never ends: ranks leave without exit handlers, so it is never called."""

import atexit
import time

FAULT = {
    "verdict": ("passed", ""),
    "ranks": ["passed", "passed"],
    "exit_code": 0,
    "isolation": "test",
    "seconds": 2,
}


def test_fault(rank):
    if rank == 1:
        atexit.register(time.sleep, 3600)

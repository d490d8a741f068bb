"""One rank ignores SIGTERM and hangs."""

import signal
import time

FAULT = {
    "limits": {"process_group": 2, "test": 3},
    "verdict": ("error", "timed_out"),
    "leading": 1,
    "ranks": ["passed", "timed_out"],
    "words": ["rank 1 timed out", "3 s", "test_ignores_sigterm.py"],
    "seconds": 6,
}


def test_fault(rank):
    if rank == 1:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(3600)

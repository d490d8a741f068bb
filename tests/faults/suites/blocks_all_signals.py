"""One rank of four blocks every signal and hangs."""

import signal
import time

FAULT = {
    "world_size": 4,
    "limits": {"process_group": 2, "test": 3},
    "verdict": ("error", "timed_out"),
    "leading": 3,
    "ranks": ["passed", "passed", "passed", "timed_out"],
    "words": ["rank 3 timed out", "3 s"],
    "seconds": 7,
}


def test_fault(rank):
    if rank == 3:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        time.sleep(3600)

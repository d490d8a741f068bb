"""One rank stops itself, and its peer does not wait for it."""

import os
import signal

FAULT = {
    "limits": {"process_group": 2, "test": 3},
    "verdict": ("error", "timed_out"),
    "leading": 1,
    "ranks": ["passed", "timed_out"],
    "words": ["rank 1 timed out", "SIGSTOP"],
    "seconds": 6,
}


def test_fault(rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)

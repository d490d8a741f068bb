"""One rank is killed while its kernel runs."""

import os
import signal

FAULT = {
    "world_size": 2,
    "test": "test_fault",
    "verdict": ("error", "crashed"),
    "leading": 1,
    "words": ["rank 1 was killed by SIGKILL"],
    "limits": {"process_group": 20, "test": 30, "job": 90},
    "seconds": 40,
}


def fault(gpu, rank, all_reduce):
    if rank == 1:
        gpu.spin()
        assert gpu.is_spinning()
        os.kill(os.getpid(), signal.SIGKILL)
    all_reduce()

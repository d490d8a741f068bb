"""One rank never comes to a collective in which its peer waits: NCCL's watchdog and flight recorder see that, too."""

import time

FAULT = {
    "world_size": 2,
    "test": "test_fault",
    "limits": {"process_group": 12, "test": 20, "job": 90},
    "verdict": ("error", "timed_out"),
    "leading": 1,
    "words": ["rank 1 timed out"],
    "seconds": 30,
}


def fault(_gpu, rank, all_reduce):
    if rank == 1:
        time.sleep(3600)
    all_reduce()

"""One rank forks, its forks fork, and each uses memory, until the job has no more of either."""

import os
import time

FAULT = {
    "limits": {"process_group": 4, "test": 5},
    "not_on": {
        "process": "the process engine limits neither, and the host would be the victim",
        "slurm": "the nodes of the trial cluster limit neither, and the host would be the victim",
    },
    "is_alone": True,
    "verdict": ("error", "timed_out"),
    "leading": 1,
    "ranks": ["passed", "timed_out"],
    "words": ["rank 1"],
    "seconds": 20,
}


def test_fault(rank):
    kept = []
    while rank == 1:
        try:
            os.fork()
            kept.append(bytes(3 << 20).replace(b"\0", b"1"))
        except (BlockingIOError, MemoryError, OSError):
            time.sleep(1)

"""One rank forks, and its forks fork, until the job may have no more processes."""

import os
import time

FAULT = {
    "limits": {"process_group": 4, "test": 5},
    "not_on": {
        "process": "the process engine limits no number of processes, and the host would be the victim",
        "slurm": "the nodes of the trial cluster limit no number of processes, and the host would be the victim",
    },
    "is_alone": True,
    "verdict": ("error", "timed_out"),
    "leading": 1,
    "ranks": ["passed", "timed_out"],
    "words": ["rank 1 timed out", "5 s"],
    "seconds": 20,
}


def test_fault(rank):
    while rank == 1:
        try:
            os.fork()
        except BlockingIOError:
            time.sleep(1)

"""A rank leaves a fork bomb behind, and passes."""

import os
import time

FAULT = {
    "limits": {"process_group": 4, "test": 5},
    "not_on": {
        "process": "the process engine limits no number of processes, and the host would be the victim",
        "slurm": "the nodes of the trial cluster limit no number of processes, and the host would be the victim",
    },
    "is_alone": True,
    "verdict": ("passed", ""),
    "ranks": ["passed", "passed"],
    "exit_code": 0,
    "prints": ["was still running; allranks killed it"],
    "seconds": 20,
}


def test_fault(rank):
    if rank == 1 and os.fork() == 0:
        while True:
            try:
                os.fork()
            except BlockingIOError:
                time.sleep(1)

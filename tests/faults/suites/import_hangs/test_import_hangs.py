"""The import of a module hangs: the engine's own limit ends the job, 20 s after the job's."""

import time

FAULT = {
    "world_size": 2,
    "test": "job",
    "limits": {"process_group": 1, "test": 2, "job": 3},
    "verdict": ("error", "job"),
    "words": ["The job's time was up"],
    "seconds": 26,
}


time.sleep(3600)

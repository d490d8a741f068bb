"""The import of a module hangs: the job's limit ends it, and says where."""

import time

FAULT = {
    "test": "collection",
    "limits": {"process_group": 1, "test": 2, "job": 3},
    "verdict": ("error", "collection"),
    "text": ["job's time was up before the suite was collected"],
    "seconds": 10,
}


time.sleep(3600)

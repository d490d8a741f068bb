"""The import of a module hangs: the job's limit ends it, and says where."""

import time

FAULT = {
    "test": "collection",
    "limits": {"process_group": 1, "test": 2, "job": 3},
    "verdict": ("error", "collection"),
    "text": ["was not collected when the job's time was up"],
    "seconds": 10,
}


time.sleep(3600)

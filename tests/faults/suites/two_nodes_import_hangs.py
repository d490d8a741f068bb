"""Importing the suite hangs on node 1 alone."""

import os
import time

FAULT = {
    "nodes": 2,
    "limits": {"assembly": 6},
    "verdict": ("error", "missing"),
    "ranks": ["missing", "missing"],
    "words": ["The agent of node 1 did not collect its tests within 6 s"],
    "exit_code": 3,
    "others": {
        "test_after": {"verdict": ("error", "missing"), "ranks": ["missing", "missing"]},
        "job": {"verdict": ("error", "job"), "words": ["The agent of node 1 did not collect its tests within 6 s"]},
    },
    "seconds": 15,
}

if os.environ.get("GROUP_RANK") == "1":
    time.sleep(3600)


def test_fault():
    pass

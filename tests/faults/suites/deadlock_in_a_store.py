"""Each rank waits for a key that the other one would set next."""

from datetime import timedelta

import torch.distributed as dist

FAULT = {
    "limits": {"process_group": 2, "test": 3},
    "verdict": ("error", "timed_out"),
    "leading": [0, 1],
    "ranks": ["timed_out", "timed_out"],
    "words": ["timed out", "3 s", "test_deadlock_in_a_store.py"],
    "seconds": 6,
    "undetermined": "both are stopped by the same limit",
}


def test_fault(rank):
    store = dist.FileStore("keys", 2)
    store.wait([f"from-{1 - rank}"], timedelta(hours=1))
    store.set(f"from-{rank}", "here")

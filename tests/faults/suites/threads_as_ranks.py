"""Ranks that are threads: one leaves, and torch ends its peers; or one hangs. The message names the one at fault."""

import sys
import time

import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiThreadedTestCase

FAULT = {
    "test": "test_one_hangs",
    "limits": {"test": 4, "process_group": 2},
    "verdict": ("error", "timed_out"),
    "leading": 0,
    "ranks": ["timed_out", "timed_out"],
    "words": ["; a thread was in suite/test_threads_as_ranks.py:49 in sleep; a thread was in"],
    "others": {
        "test_one_leaves": {
            "verdict": ("failure", "failed"),
            "leading": 0,
            "ranks": ["failed", "failed"],
            "words": ["the rank's thread ended during the test: SystemExit: 3"],
        },
        "test_two_fail": {
            "verdict": ("failure", "failed"),
            "leading": 0,
            "ranks": ["failed", "failed"],
            "words": ["Thread 1 exited with exception: ValueError: the cause"],
        },
    },
    "seconds": 18,  # a launching process gets more time than its ranks
}


class TestThreads(MultiThreadedTestCase):
    @property
    def world_size(self):
        return 2

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    def test_one_hangs(self):
        if self.rank == 1:
            self.sleep()
        dist.barrier()

    def sleep(self):
        time.sleep(100)

    def test_one_leaves(self):
        if self.rank == 1:
            sys.exit(3)
        dist.barrier()

    def test_two_fail(self):
        if self.rank == 1:
            msg = "the cause"
            raise ValueError(msg)
        time.sleep(0.5)
        raise KeyError

"""Ranks that a test starts itself wait in vain, swallow it, or call different things: as in ranks of the cell."""

import contextlib
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcContinuousTest, MultiProcessTestCase

FAULT = {
    "test": "test_swallows",
    "limits": {"process_group": 4, "test": 12, "job": 120},
    "seconds": 45,
    "verdict": ("error", "timed_out"),
    "leading": 1,
    "ranks": ["failed", "timed_out"],
    "words": ["rank 1 timed out", "waited for it", "in sleep"],
    "others": {
        "test_polls": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["failed", "timed_out"],
            "words": ["rank 1 timed out", "waited for it", "in sleep"],
        },
        "test_kept_ranks_swallow": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["failed", "timed_out"],
            "words": ["rank 1 timed out", "waited for it", "in sleep"],
        },
        "test_calls_something_else": {
            "verdict": [("failure", "failed"), ("error", "timed_out")],
            "leading": [0, 1],
            "ranks": ["failed|aborted|timed_out", "failed|aborted|timed_out"],
            "words": ["rank 0 called barrier #1, rank 1 all_reduce #1"],
            "undetermined": "whose call fails first",
        },
    },
}

SHORT = timedelta(seconds=0.5)


def sleep():
    time.sleep(100)


def swallow():
    is_done = False
    with contextlib.suppress(RuntimeError):
        dist.all_reduce(torch.ones(1), async_op=True).wait(SHORT)
        is_done = True
    assert is_done


class TestOwnRanks(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def join(self):
        file, limit = f"file://{self.file_name}", timedelta(seconds=3)
        dist.init_process_group("gloo", init_method=file, rank=self.rank, world_size=2, timeout=limit)

    def test_swallows(self):
        self.join()
        if self.rank == 1:
            sleep()
        swallow()

    def test_polls(self):
        self.join()
        if self.rank == 1:
            sleep()
        work = dist.all_reduce(torch.ones(1), async_op=True)
        for _ in range(5):
            time.sleep(0.1)
            work.is_completed()
        assert work.is_completed()

    def test_calls_something_else(self):
        self.join()
        if self.rank == 1:
            dist.all_reduce(torch.ones(1))
        dist.barrier()


class TestKeptRanks(MultiProcContinuousTest):
    world_size = 2

    @classmethod
    def backend_str(cls):
        return "gloo"

    def test_kept_ranks_swallow(self):
        if self.rank == 1:
            sleep()
        swallow()

    def test_kept_ranks_go_on(self):
        dist.barrier()

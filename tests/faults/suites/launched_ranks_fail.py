"""More of ranks that a test starts itself: waits for something of their own, wrong calls, and failures in turn."""

import contextlib
import os
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.common_distributed import MultiProcContinuousTest, MultiProcessTestCase

FAULT = {
    "test": "test_a_future_of_torch_that_nobody_sets",
    "limits": {"process_group": 4, "test": 12, "job": 250, "peer_grace": 2},
    "seconds": 110,
    "verdict": ("error", "timed_out"),
    "leading": 0,
    "ranks": ["timed_out", "failed"],
    "words": ["rank 0 timed out"],
    "others": {
        "test_a_future_of_torch_holds_an_error": {
            "verdict": ("failure", "failed"),
            "leading": 0,
            "ranks": ["failed", "aborted"],
            "words": ["rank 0 failed", "its own"],
        },
        "test_a_store_that_only_this_rank_has": {
            "verdict": ("failure", "failed"),
            "leading": 0,
            "ranks": ["failed", "aborted"],
            "words": ["rank 0 failed"],
        },
        "test_a_thread_still_waits": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["failed", "timed_out"],
            "words": ["rank 1 timed out", "in sleep"],
        },
        "test_one_returns_early": {
            "verdict": ("failure", "failed"),
            "leading": 0,
            "ranks": ["failed", "passed"],
            "words": ["rank 0 failed"],
        },
        "test_one_leaves": {
            "verdict": ("error", "crashed"),
            "leading": 1,
            "ranks": ["failed|aborted", "crashed"],
            "words": ["rank 1 exited with code 3"],
            "undetermined": "whether the peer's own call or the grace ends first",
        },
        "test_one_sleeps_before_its_backward": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["failed", "timed_out"],
            "words": ["rank 1 timed out", "in sleep"],
        },
        "test_kept_a_dtype_that_gloo_lacks": {
            "verdict": ("failure", "failed"),
            "leading": 0,
            "ranks": ["failed", "aborted"],
            "words": ["rank 0 failed", "Invalid scalar type"],
        },
        "test_kept_polls_and_asserts": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["failed", "timed_out"],
            "words": ["rank 1 timed out", "in sleep"],
        },
        "test_kept_the_absent_one_fails_later_by_itself": {
            "verdict": ("failure", "failed"),
            "leading": 1,
            "ranks": ["failed", "failed"],
            "words": ["rank 1 failed", "its own"],
        },
        "test_kept_a_key_that_becomes_a_number": {
            "verdict": ("error", "timed_out"),
            "leading": 1,
            "ranks": ["failed", "timed_out"],
            "words": ["rank 1 timed out", "in sleep"],
        },
    },
}

SHORT = timedelta(seconds=0.6)


def sleep():
    time.sleep(100)


def fail(words="its own", after=0.0):
    time.sleep(after)
    raise LookupError(words)


def start():
    return dist.all_reduce(torch.ones(1), async_op=True)


class TestOwnRanks(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def join(self):
        file, limit = f"file://{self.file_name}", timedelta(seconds=3)
        dist.init_process_group("gloo", init_method=file, rank=self.rank, world_size=2, timeout=limit)

    def test_a_future_of_torch_that_nobody_sets(self):
        self.join()
        if self.rank == 1:
            dist.all_reduce(torch.ones(1))
        torch.futures.Future().wait()

    def test_a_future_of_torch_holds_an_error(self):
        self.join()
        if self.rank == 1:
            sleep()
        future = torch.futures.Future()
        future.set_exception(RuntimeError("its own"))
        future.wait()

    def test_a_store_that_only_this_rank_has(self):
        self.join()
        if self.rank == 1:
            sleep()
        dist.HashStore().wait(["never"], timedelta(seconds=0.3))

    def test_a_thread_still_waits(self):
        self.join()
        if self.rank == 1:
            sleep()
        thread = threading.Thread(target=dist.recv, args=(torch.zeros(1), 1), daemon=True)
        thread.start()
        thread.join(1)
        assert not thread.is_alive()

    def test_one_returns_early(self):
        self.join()
        if self.rank == 0:
            dist.barrier()

    def test_one_leaves(self):
        self.join()
        if self.rank == 1:
            time.sleep(0.3)
            os._exit(3)
        dist.barrier()

    def test_one_sleeps_before_its_backward(self):
        self.join()
        model = DistributedDataParallel(torch.nn.Linear(2, 2))
        if self.rank == 1:
            sleep()
        try:
            model(torch.ones(1, 2)).sum().backward()
        except RuntimeError:
            raise LookupError from None


class TestKeptRanks(MultiProcContinuousTest):
    world_size = 2

    @classmethod
    def backend_str(cls):
        return "gloo"

    def test_kept_a_dtype_that_gloo_lacks(self):
        if self.rank == 1:
            sleep()
        dist.all_reduce(torch.ones(1, dtype=torch.int16))

    def test_kept_polls_and_asserts(self):
        if self.rank == 1:
            sleep()
        work = start()
        for _ in range(5):
            time.sleep(0.1)
            work.is_completed()
        assert work.is_completed()

    def test_kept_the_absent_one_fails_later_by_itself(self):
        if self.rank == 1:
            fail(after=1.1)
        start().wait(SHORT)

    def test_kept_a_key_that_becomes_a_number(self):
        if self.rank == 1:
            sleep()
        value = b""
        store = dist.distributed_c10d._get_default_store()
        store.set_timeout(SHORT)
        with contextlib.suppress(RuntimeError):
            value = store.get("number of rank 1")
        assert int(value) == 1

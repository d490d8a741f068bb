"""Tests of the continuous class of torch 2.6, in which the test script starts the ranks, under an agent."""

import pytest

BASE = """
    import os, unittest
    import torch
    import torch.distributed as dist
    from torch.testing._internal import common_distributed

    class OfTorch26(unittest.TestCase):
        world_size, rank, rdvz_file = 2, -1, None

        @classmethod
        def backend_str(cls):
            raise NotImplementedError

        @classmethod
        def setUpClass(cls):
            super().setUpClass()
            assert 0 <= cls.rank < cls.world_size, "the rank is not set"
            store = dist.FileStore(cls.rdvz_file, cls.world_size)
            dist.init_process_group(cls.backend_str(), world_size=cls.world_size, rank=cls.rank, store=store)
            cls.pg = dist.group.WORLD

        @classmethod
        def tearDownClass(cls):
            dist.destroy_process_group()
            super().tearDownClass()

        @classmethod
        def run_rank(cls, rank, world_size, rdvz_file=None): ...

    common_distributed.MultiProcContinousTest = OfTorch26
"""

TESTS = """
    from base import OfTorch26, dist, os, torch, unittest

    class TestGloo(OfTorch26):
        @classmethod
        def backend_str(cls):
            return "gloo"

        @classmethod
        def setUpClass(cls):
            super().setUpClass()
            cls.device = ("cpu", "meta")[cls.rank]
            cls.made_in = os.getpid()

        def setUp(self):
            self.position = (self.rank, self.device)

        def test_a_reduces(self):
            total = torch.tensor([self.rank + 1.0])
            dist.all_reduce(total, group=self.pg)
            assert total.item() == 3
            assert self.position in [(0, "cpu"), (1, "meta")]
            assert self.made_in == os.getpid()
            type(self).left = os.getpid()

        def test_b_has_the_same_ranks(self):
            assert self.left == os.getpid()

        def test_c_fails(self):
            assert self.rank == 0, "rank 1 broke"

        def test_d_has_new_ranks(self):
            assert not hasattr(self, "left")

        @unittest.skip("not this one")
        def test_e_is_skipped(self): ...

        @unittest.expectedFailure
        def test_f_is_expected_to_fail(self):
            assert False

    class TestNccl(OfTorch26):
        @classmethod
        def backend_str(cls):
            return "nccl"

        def test_on_nccl(self): ...

    class TestNoDevice(TestNccl):
        world_size = 0
        test_on_nccl = None

        def test_on_none(self): ...
"""

FILES = {"base.py": BASE, "test_classes.py": TESTS}


@pytest.fixture(scope="module")
def classes(run_once):
    return run_once("script_ranks", FILES, limits={"peer_grace": 0.3, "process_group": 10})


@pytest.mark.parametrize(
    ("test", "outcomes"),
    [
        ("test_a_reduces", ("passed", "passed")),
        ("test_b_has_the_same_ranks", ("passed", "passed")),
        ("test_c_fails", ("passed", "failed")),
        ("test_d_has_new_ranks", ("passed", "passed")),
        ("test_e_is_skipped", ("skipped", "skipped")),
        ("test_f_is_expected_to_fail", ("xfailed", "xfailed")),
    ],
)
def test_each_rank_has_its_own_outcome(classes, test, outcomes):
    assert tuple(classes.cases(rank)[test].outcome for rank in range(2)) == outcomes


@pytest.mark.parametrize(("test", "code"), [("test_on_nccl", "77"), ("test_on_none", "74")])
def test_a_class_whose_ranks_need_gpus_is_skipped_without_gpus(classes, test, code):
    case = classes.cases(0)[test]
    assert (case.outcome, case.properties["skip_kind"], case.properties["skip_code"]) == ("skipped", "hardware", code)


def test_nothing_is_left(classes):
    classes.assert_nothing_left()

"""Tests of torch's MultiProcContinuousTest under an agent, whose ranks are kept for a class."""

import pytest

FILES = {
    "test_classes.py": """
        import os, sys, time
        import pytest, torch
        import torch.distributed as dist
        from torch.testing._internal.common_distributed import MultiProcContinuousTest

        class Case(MultiProcContinuousTest):
            world_size = 2

            @classmethod
            def backend_str(cls):
                return "gloo"

            def reduce(self):
                total = torch.tensor([self.rank + 1.0])
                dist.all_reduce(total, group=self.pg)
                self.assertEqual(total, torch.tensor([3.0]))

        class TestKept(Case):
            def test_a_leaves_something(self):
                self.reduce()
                type(self).left = os.getpid()

            def test_b_finds_it(self):
                self.reduce()
                assert self.left == os.getpid()

        class TestWrong(Case):
            def test_a_fails(self):
                if self.rank == 1:
                    raise ValueError("rank 1 broke")
                time.sleep(1000)

            def test_b_runs_in_fresh_ranks(self):
                self.reduce()

            def test_c_skips(self):
                sys.exit(77)

            def test_d_skips_alone(self):
                if self.rank == 0:
                    self.skipTest("not here")

            @pytest.mark.time_limit(1)
            def test_e_hangs(self):
                if self.rank == 0:
                    time.sleep(1000)

            def test_f_runs(self):
                self.reduce()

        class TestNoGroup(Case):
            @classmethod
            def _init_pg(cls, rank, world_size, rdvz_file):
                if rank == 1:
                    raise RuntimeError("no address")
                super()._init_pg(rank, world_size, rdvz_file)

            def test_has_no_group(self): ...

        class TestSkipsGroup(Case):
            @classmethod
            def _init_pg(cls, rank, world_size, rdvz_file):
                sys.exit(74)

            def test_lacks_a_device(self): ...

        class TestNoDevices(Case):
            world_size = 0

            def test_has_no_ranks(self): ...

        class TestThree(Case):
            @property
            def world_size(self):
                return 3

            @world_size.setter
            def world_size(self, number):
                pass

            def test_has_three_ranks(self):
                assert dist.get_world_size() == 3

        class TestEnd(Case):
            def test_fails_at_the_end(self):
                if self.rank == 1:
                    def destroy():
                        raise RuntimeError("cannot let go")
                    dist.destroy_process_group = destroy

        class TestNoBackend(Case):
            @classmethod
            def backend_str(cls):
                return "mpi"

            def test_of_mpi(self): ...
    """
}


@pytest.fixture(scope="module")
def classes(run_once):
    return run_once("torch_classes", FILES, limits={"peer_grace": 0.3, "process_group": 5})


@pytest.mark.parametrize(
    ("test", "outcomes"),
    [
        ("test_a_leaves_something", ("passed", "passed")),
        ("test_b_finds_it", ("passed", "passed")),
        ("test_a_fails", ("aborted", "failed")),
        ("test_b_runs_in_fresh_ranks", ("passed", "passed")),
        ("test_c_skips", ("skipped", "skipped")),
        ("test_d_skips_alone", ("skipped", "passed")),
        ("test_e_hangs", ("timed_out", "passed")),
        ("test_f_runs", ("passed", "passed")),
        ("test_has_no_group", ("aborted", "errored")),
        ("test_lacks_a_device", ("skipped", "skipped")),
        ("test_has_no_ranks", ("skipped", "skipped")),
        ("test_has_three_ranks", ("passed", "passed", "passed")),
        ("test_fails_at_the_end", ("passed", "errored")),
        ("test_of_mpi", ("skipped", "skipped")),
    ],
)
def test_each_rank_has_its_own_outcome(classes, test, outcomes):
    assert tuple(classes.cases(rank)[test].outcome for rank in range(len(outcomes))) == outcomes


def test_a_failure_is_the_ranks_own(classes):
    case = classes.cases(1)["test_a_fails"]
    assert case.message == "ValueError: rank 1 broke"
    assert 'raise ValueError("rank 1 broke")' in case.text


def test_a_skip_has_torchs_reason_and_code(classes):
    properties = classes.cases(0)["test_lacks_a_device"].properties
    assert (properties["skip_kind"], properties["skip_code"]) == ("hardware", "74")


def test_nothing_is_left(classes):
    classes.assert_nothing_left()

"""Classes that keep their ranks, under an agent."""

import pytest

pytestmark = pytest.mark.thorough

FILES = {
    "test_class.py": """
        import ctypes, os, sys, time, unittest
        import pytest, torch
        import torch.distributed as dist
        from allranks.testing import MultiProcContinuousTest

        def say(word):
            with open(os.environ["WORDS"], "w") as words:
                words.write(f"{word}\\n")

        class Case(MultiProcContinuousTest):
            world_size = 2

            @classmethod
            def backend_str(cls):
                return "gloo"

            def reduce(self):
                total = torch.tensor([self.rank + 1.0])
                dist.all_reduce(total)
                self.assertEqual(total, torch.tensor([3.0]))

        class TestKept(Case):
            @classmethod
            def setUpClass(cls):
                super().setUpClass()
                say(f"set up {os.getpid()}")

            def test_a(self):
                self.reduce()
                type(self).left = os.getpid()

            def test_b(self):
                self.reduce()
                assert self.left == os.getpid()

            @classmethod
            def tearDownClass(cls):
                super().tearDownClass()
                say("torn down")

        class TestBad(Case):
            def test_a_fails(self):
                if self.rank == 1:
                    raise ValueError("rank 1 broke")
                time.sleep(1000)

            def test_b_runs_in_fresh_ranks(self):
                self.reduce()

            def test_c_crashes(self):
                if self.rank == 0:
                    ctypes.string_at(0)
                dist.barrier()

            def test_d_skips(self):
                sys.exit(77)

            def test_e_disagrees(self):
                if self.rank == 0:
                    self.skipTest("not here")

            @pytest.mark.time_limit(1)
            def test_f_hangs(self):
                if self.rank == 0:
                    time.sleep(1000)

            def test_g_exits(self):
                sys.exit(3)

            def test_h_runs(self):
                self.reduce()

        class TestNoGroup(Case):
            @classmethod
            def _init_pg(cls, rank, world_size, rdvz_file):
                if rank == 1:
                    raise RuntimeError("no address")
                super()._init_pg(rank, world_size, rdvz_file)

            def test_one(self): ...
            def test_two(self): ...

        class TestSkipsGroup(Case):
            @classmethod
            def _init_pg(cls, rank, world_size, rdvz_file):
                sys.exit(74)

            def test_three(self): ...

        class TestThree(Case):
            @property
            def world_size(self):
                return 3

            def test_three_ranks(self):
                assert dist.get_world_size() == self.world_size == 3

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
    return run_once("classes", FILES, limits={"peer_grace": 1.5, "process_group": 5})


@pytest.mark.parametrize(
    ("test", "outcomes"),
    [
        ("test_a", ("passed", "passed")),
        ("test_b", ("passed", "passed")),
        ("test_a_fails", ("aborted", "failed")),
        ("test_b_runs_in_fresh_ranks", ("passed", "passed")),
        ("test_c_crashes", ("crashed", "failed")),
        ("test_d_skips", ("skipped", "skipped")),
        ("test_e_disagrees", ("skipped", "passed")),
        ("test_f_hangs", ("timed_out", "passed")),
        ("test_g_exits", ("crashed", "crashed")),
        ("test_h_runs", ("passed", "passed")),
        ("test_one", ("aborted", "errored")),
        ("test_two", ("aborted", "errored")),
        ("test_three", ("skipped", "skipped")),
        ("test_three_ranks", ("passed", "passed", "passed")),
        ("test_fails_at_the_end", ("passed", "errored")),
        ("test_of_mpi", ("skipped", "skipped")),
    ],
)
def test_each_rank_has_its_own_outcome(classes, test, outcomes):
    assert tuple(classes.cases(rank)[test].outcome for rank in range(len(outcomes))) == outcomes


def test_class_fixtures_are_set_up_once(classes):
    words = classes.words()
    assert [word.split()[0] for word in words] == ["set", "torn"]


def test_a_rank_that_cannot_join_is_the_first_failure(classes):
    first = next(event for event in classes.arrived("test_one") if not event.consequence)
    assert (first.rank, first.message) == (1, "RuntimeError: no address")
    assert classes.cases(0)["test_one"].message.startswith("aborted by rank 1")


def test_a_crash_leads_over_the_peer_whose_collective_broke(classes):
    bad = {event.rank: event.consequence for event in classes.arrived("test_c_crashes")}
    assert bad == {0: False, 1: True}


def test_nothing_is_left(classes):
    classes.assert_nothing_left()

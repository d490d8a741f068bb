"""Tests of torch's MultiThreadedTestCase under an agent: one process runs them once for all ranks."""

import pytest

FILES = {
    "test_threads.py": """
        import os, sys, time, unittest
        import pytest, torch
        import torch.distributed as dist
        from torch.testing._internal.common_distributed import MultiThreadedTestCase

        def say(word):
            with open(os.environ["WORDS"], "w") as words:
                words.write(f"{word}\\n")

        class TestThreads(MultiThreadedTestCase):
            @property
            def world_size(self):
                return 3

            def setUp(self):
                super().setUp()
                if "set_up_fails" in self.id():
                    raise RuntimeError("no")
                self._spawn_threads()

            def test_passes(self):
                total = torch.tensor([1.0])
                dist.all_reduce(total)
                self.assertEqual(total, torch.tensor([3.0]))
                if self.rank == 0:
                    say("once")

            def test_fails(self):
                if self.rank == 1:
                    raise ValueError("thread 1 broke")

            def test_skips(self):
                sys.exit(77)

            def test_set_up_fails(self): ...

            def perThreadSetUp(self):
                if "thread_set_up" in self.id() and self.rank == 2:
                    raise RuntimeError("no")

            def test_thread_set_up_fails(self): ...

            def test_fails_by_pytest(self):
                if self.rank == 1:
                    pytest.fail("by pytest")
                dist.barrier()

            def test_exits(self):
                sys.exit(3 if self.rank else 77)

            def test_one_exits(self):
                if self.rank == 1:
                    sys.exit(3)
                dist.barrier()

            def test_xfails_by_pytest(self):
                pytest.xfail("known")

            def test_skips_by_pytest(self):
                pytest.skip("by pytest")

            async def test_is_never_awaited(self):
                raise ValueError("not run")

            def test_one_skips(self):
                if self.rank == 1:
                    self.skipTest("one thread alone")

            def test_one_xfails(self):
                if self.rank == 1:
                    pytest.xfail("one thread alone")

            def test_dies(self):
                os._exit(3)

            @pytest.mark.xfail(reason="known")
            def test_is_expected_to_fail(self):
                raise ValueError("known")

        class TestNoThreads(MultiThreadedTestCase):
            world_size = 2

            def test_starts_none(self):
                raise ValueError("not run")

        class TestNoDevices(TestThreads):
            world_size = 0
            test_passes = test_fails = test_skips = test_set_up_fails = test_dies = test_is_expected_to_fail = None
            test_thread_set_up_fails = test_fails_by_pytest = test_exits = test_skips_by_pytest = None
            test_xfails_by_pytest = test_one_skips = test_one_xfails = test_is_never_awaited = test_one_exits = None

            def test_has_no_device(self): ...

        class TestNegative(TestNoDevices):
            world_size = -1
            test_has_no_device = None

            def test_has_a_negative_world(self): ...

        class TestKept(TestThreads):
            test_passes = test_fails = test_skips = test_set_up_fails = test_dies = test_is_expected_to_fail = None
            test_thread_set_up_fails = test_fails_by_pytest = test_exits = test_skips_by_pytest = None
            test_xfails_by_pytest = test_one_skips = test_one_xfails = test_is_never_awaited = test_one_exits = None
            noted = []

            def test_a_notes_its_process(self):
                self.noted.append(os.getpid())

            @pytest.mark.xfail(reason="known")
            def test_b_is_known(self):
                raise ValueError("known")

            def test_c_skips(self):
                sys.exit(77)

            def test_d_is_in_it(self):
                assert os.getpid() in self.noted
    """
}


@pytest.fixture(scope="module")
def threads(run_once):
    return run_once("torch_threads", FILES, limits={"peer_grace": 0.3})


@pytest.mark.parametrize(
    ("test", "outcome"),
    [
        ("test_passes", "passed"),
        ("test_fails", "failed"),
        ("test_skips", "skipped"),
        ("test_set_up_fails", "failed"),
        ("test_thread_set_up_fails", "failed"),
        ("test_fails_by_pytest", "failed"),
        ("test_exits", "failed"),
        ("test_one_exits", "failed"),
        ("test_skips_by_pytest", "skipped"),
        ("test_xfails_by_pytest", "xfailed"),
        ("test_one_skips", "failed"),
        ("test_is_never_awaited", "errored"),
        ("test_one_xfails", "failed"),
        ("test_starts_none", "failed"),
        ("test_has_a_negative_world", "failed"),
        ("test_has_no_device", "skipped"),
        ("test_dies", "crashed"),
        ("test_is_expected_to_fail", "xfailed"),
        ("test_a_notes_its_process", "passed"),
        ("test_b_is_known", "xfailed"),
        ("test_d_is_in_it", "passed"),
    ],
)
def test_all_ranks_share_the_one_outcome(threads, test, outcome):
    assert threads.outcomes(test) == (outcome, outcome)


def test_a_test_runs_once(threads):
    assert threads.words() == ["once"]


def test_a_failure_contains_the_error(threads):
    assert "the rank's thread ended during the test: SystemExit: 3" in threads.cases(1)["test_exits"].text
    assert "setUp did not call self._spawn_threads()" in threads.cases(1)["test_starts_none"].text
    assert "ranks disagree: 1 of 3 did not pass" in threads.cases(1)["test_one_skips"].message
    assert "ValueError: thread 1 broke" in threads.cases(1)["test_fails"].text
    assert threads.cases(1)["test_one_exits"].message.endswith("ended during the test: SystemExit: 3")
    assert threads.cases(1)["test_fails_by_pytest"].message.endswith("ended during the test: Failed: by pytest")

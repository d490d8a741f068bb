import os
import sys
import textwrap
import threading
import types
import unittest

import pytest
import torch
import torch.distributed as dist

from allranks.agent.diagnose.unmatched_calls import format_ranks
from allranks.agent.environment_skips import EnvironmentSkip
from allranks.protocol.config import TimeLimit
from allranks.protocol.outcomes import Outcome
from allranks.protocol.skip_codes import SkipCode
from allranks.testing import MultiThreadedTestCase, RankThreadError, ThreadedWorldError, spawn_threads_and_init_comms
from allranks.testing.threads import JoinLimits, raise_for, run_ranks, threaded_world

pytest_plugins = ["pytester"]

PLUGIN = ("-p", "allranks.testing.fixtures", "-p", "no:hypothesispytest")


def time_limit(seconds):
    return TimeLimit(value=seconds, setting="thread_timeout")


LONG = JoinLimits(total=time_limit(60))
SHORT = JoinLimits(total=time_limit(0.3), settling=0.1, grace=10)


def outcomes(size, body, patience=LONG):
    return {ending.rank: ending.outcome for ending in run_ranks(size, body, patience)}


def error_of(size, body, patience=LONG):
    with pytest.raises(RankThreadError) as caught:
        raise_for(run_ranks(size, body, patience))
    return caught.value


def run_case(case, name):
    """Run one test method with unittest; returns the result."""
    result = unittest.TestResult()
    case(name).run(result)
    return result


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_rank_has_the_process_group_of_its_thread(size):
    sums = {}

    def body(rank):
        tensor = torch.tensor([float(dist.get_rank())])
        dist.all_reduce(tensor)
        sums[rank] = (dist.get_world_size(), tensor.item())

    assert outcomes(size, body) == dict.fromkeys(range(size), Outcome.PASSED)
    assert sums == dict.fromkeys(range(size), (size, float(sum(range(size)))))


def test_subgroups_are_groups_of_threads_too():
    def body(rank):
        group, _ = dist.new_subgroups_by_enumeration([[0, 1], [2]])
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == (1 if rank == 2 else 2)

    raise_for(run_ranks(3, body, LONG))


def test_the_error_states_the_first_failed_rank_and_the_location_of_its_peers():
    def body(rank):
        if rank == 1:
            msg = "a bad apple"
            raise ValueError(msg)
        dist.barrier()

    error = error_of(3, body)
    headline, *peers = str(error).splitlines()
    assert error.leading == 1
    assert headline == "rank 1 of 3 failed first: ValueError: a bad apple"
    assert isinstance(error.__cause__, ValueError)
    assert [peer.split(" in ")[0] for peer in peers] == [
        "  ranks 0 and 2 aborted by rank 1: each waited for its peers",
    ]
    assert all(f"{__file__}:" in peer and peer.endswith("in body") for peer in peers)


def test_ranks_with_the_same_error_are_all_failures():
    def body(_rank):
        dist.barrier()
        assert dist.get_world_size() == 7

    error = error_of(3, body, JoinLimits(total=time_limit(60), settling=20))
    peers = format_ranks([rank for rank in range(3) if rank != error.leading])
    assert str(error).splitlines()[1:] == [f"  {peers} failed with the same error"]


def test_the_traceback_of_a_peer_with_a_different_error_is_in_a_note():
    started = threading.Event()

    def body(rank):
        if rank == 0:
            started.set()
            raise KeyError(0)
        assert started.wait(30)
        raise LookupError(rank)

    endings = run_ranks(2, body, LONG)
    endings.sort(key=lambda ending: ending.rank)
    with pytest.raises(
        RankThreadError, match=r"rank 0 of 2 failed first: KeyError: 0\n  rank 1 failed: Lookup"
    ) as caught:
        raise_for(endings)
    [note] = caught.value.__notes__
    assert note.startswith("rank 1:\nTraceback")
    assert "raise LookupError(rank)" in note


def test_an_error_in_the_cleanup_of_a_stopped_rank_is_not_a_failure():
    def body(rank):
        if rank == 0:
            raise ValueError
        try:
            dist.barrier()
        finally:
            {}["nothing"]

    assert outcomes(2, body) == {0: Outcome.FAILED, 1: Outcome.ABORTED}


def test_peers_of_a_failed_rank_have_time_to_pass():
    failed = threading.Event()

    def body(rank):
        if rank == 0:
            failed.set()
            raise ValueError
        assert failed.wait(30)

    assert outcomes(2, body) == {0: Outcome.FAILED, 1: Outcome.PASSED}


def test_a_rank_that_exits_during_a_test_has_failed():
    error = error_of(2, lambda rank: sys.exit(0) if rank == 1 else None)
    assert str(error) == "rank 1 of 2 failed first: SystemExit: 0\n  rank 0 passed"


@pytest.mark.parametrize(
    ("skip", "message"),
    [
        (lambda: pytest.skip("not today"), "not today"),
        (lambda: unittest.TestCase().skipTest("not today"), "not today"),
        (lambda: sys.exit(int(SkipCode.NO_NCCL)), "this torch is built without NCCL"),
    ],
    ids=["pytest", "unittest", "exit code"],
)
def test_a_skip_of_all_ranks_is_a_skip_with_its_reason(skip, message):
    with pytest.raises((unittest.SkipTest, pytest.skip.Exception)) as caught:
        raise_for(run_ranks(2, lambda _rank: skip(), LONG))
    assert str(caught.value) == message


def test_a_skip_by_exit_code_keeps_the_code():
    with pytest.raises(EnvironmentSkip) as caught:
        raise_for(run_ranks(2, lambda _rank: sys.exit(76), LONG))
    assert caught.value.code is SkipCode.NO_NCCL


def test_a_skip_of_some_ranks_is_an_error():
    def body(rank):
        if rank == 1:
            pytest.skip("not me")

    assert str(error_of(2, body)) == "ranks disagree: rank 1 of 2 skipped (not me)\n  rank 0 passed"


def test_peers_that_wait_for_a_rank_that_skipped_are_stopped():
    def body(rank):
        if rank == 1:
            pytest.skip("not me")
        dist.barrier()

    error = error_of(2, body, JoinLimits(total=time_limit(60), grace=0.1))
    assert "rank 0 aborted by rank 1, which skipped: it waited for its peers in" in str(error)


def test_ranks_that_skip_after_a_collective_do_not_stop_each_other():
    def body(_rank):
        dist.barrier()
        pytest.skip("seen enough")

    for _ in range(20):
        assert outcomes(4, body) == dict.fromkeys(range(4), Outcome.SKIPPED)


def test_a_rank_in_an_endless_loop_is_the_first_failure_rather_than_peers_that_wait_for_it():
    def body(rank):
        while rank == 2:
            pass
        dist.barrier()

    error = error_of(3, body, SHORT)
    assert error.leading == 2
    assert f"rank 2 of 3 timed out: not finished after 0.3 s (thread_timeout); it was in {__file__}:" in str(error)
    assert "\n  ranks 0 and 1 timed out: each waited for its peers in " in str(error)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rank ")]


def test_a_thread_that_cannot_be_interrupted_is_reported_and_does_not_affect_later_tests():
    release = threading.Event()

    def body(rank):
        if rank == 1:
            release.wait()
        dist.barrier()

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        error = error_of(2, body, JoinLimits(total=time_limit(0.2), settling=0.1, grace=0.2))
        assert "its thread could not be interrupted and still runs" in str(error)
        [left] = [thread for thread in threading.enumerate() if thread.name == "rank 1"]
        release.set()
        left.join(30)
        assert not left.is_alive()
        assert dist.is_initialized(), "the thread that was left has destroyed the group of the process"
        dist.barrier()
    finally:
        dist.destroy_process_group()


def test_a_collective_that_fails_is_a_failure_and_nobody_hangs():
    def body(rank):
        dist.all_reduce(torch.ones(rank + 1))

    error = error_of(2, body)
    assert "rank 1 aborted by rank 0" in str(error)


def test_an_exit_of_pytest_ends_the_session():
    with pytest.raises(pytest.exit.Exception, match="enough"):
        raise_for(run_ranks(2, lambda _rank: pytest.exit("enough"), LONG))


@pytest.mark.parametrize("ending", [lambda: None, lambda: 1 / 0], ids=["passed", "failed"])
def test_the_process_s_own_group_is_hidden_and_intact(ending):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    before = dist.group.WORLD
    try:

        def body(_rank):
            assert dist.get_backend() == "threaded"
            dist.all_reduce(torch.ones(1))
            ending()

        run_ranks(2, body, LONG)
        assert dist.group.WORLD is before
        assert dist.get_backend() == "gloo"
        dist.barrier()
    finally:
        dist.destroy_process_group()


def test_a_failed_test_leaves_nothing_for_the_next():
    def bad(rank):
        if rank == 0:
            raise ValueError
        dist.barrier()

    def good(_rank):
        dist.barrier()

    for _ in range(3):
        run_ranks(3, bad, LONG)
        assert outcomes(3, good) == dict.fromkeys(range(3), Outcome.PASSED)
    assert not dist.is_initialized()


def test_autograd_works_as_before_afterwards():
    before = (
        torch.autograd.is_multithreading_enabled() if hasattr(torch.autograd, "is_multithreading_enabled") else None
    )
    run_ranks(2, lambda _rank: dist.barrier(), LONG)
    tensor = torch.ones(2, requires_grad=True)
    (tensor * 2).sum().backward()
    assert tensor.grad.tolist() == [2, 2]
    if before is not None:
        assert torch.autograd.is_multithreading_enabled() == before


def test_ranks_that_are_threads_cannot_start_ranks():
    error = error_of(1, lambda _rank: run_ranks(2, lambda _inner: None, LONG))
    assert isinstance(error.__cause__, ThreadedWorldError)


@pytest.mark.parametrize("module", [None, types.ModuleType("empty")], ids=["no module", "another module"])
def test_a_torch_without_the_threaded_group_is_an_error(monkeypatch, module):
    monkeypatch.setitem(sys.modules, "torch.testing._internal.distributed.multi_threaded_pg", module)
    with pytest.raises(ThreadedWorldError, match=r"^allranks does not support the threaded .* of torch \S+: "):
        threaded_world(2).__enter__()


class Sample(MultiThreadedTestCase):
    """The base class of the test cases below; not collected."""

    __test__ = False
    world_size = 3


def test_the_method_runs_in_each_rank_and_set_up_in_the_main_thread():
    log = []

    class Case(Sample):
        def setUp(self):
            super().setUp()
            self._spawn_threads()
            self.shared = ["from setUp"]
            log.append(("setUp", self.rank, threading.current_thread() is threading.main_thread()))

        def test_it(self):
            assert self.shared == ["from setUp"]
            log.append(("test", self.rank, dist.get_rank()))

        def tearDown(self):
            super().tearDown()
            log.append(("tearDown", self.rank, dist.is_initialized()))

    assert run_case(Case, "test_it").wasSuccessful()
    assert log[0] == ("setUp", -1, True)
    assert sorted(log[1:-1]) == [("test", rank, rank) for rank in range(3)]
    assert log[-1] == ("tearDown", -1, False)


def test_hooks_and_cleanups_run_in_each_rank_in_order():
    log = {}

    class Case(Sample):
        def perThreadSetUp(self):  # noqa: N802 - torch's name
            log[self.rank] = ["set up"]
            dist.barrier()
            self.addCleanup(log[self.rank].append, "clean-up")

        def test_it(self):
            log[self.rank].append("test")
            assert self.rank >= 3, "fails"

        def perThreadTearDown(self):  # noqa: N802 - torch's name
            log[self.rank].append(f"tear down {dist.get_rank() == self.rank}")

    assert len(run_case(Case, "test_it").failures) == 1
    assert list(log.values()) == [["set up", "test", "tear down True", "clean-up"]] * 3


@pytest.mark.parametrize("hook", ["perThreadSetUp", "perThreadTearDown", "clean-up"])
def test_a_hook_that_fails_on_one_rank_fails_the_test(hook):
    class Case(Sample):
        def fail(self):
            if self.rank == 1:
                raise ValueError(hook)

        def perThreadSetUp(self):  # noqa: N802 - torch's name
            if hook == "perThreadSetUp":
                self.fail()
            if hook == "clean-up":
                self.addCleanup(self.fail)

        def test_it(self):
            dist.barrier()

        def perThreadTearDown(self):  # noqa: N802 - torch's name
            if hook == "perThreadTearDown":
                self.fail()

    [(_, text)] = run_case(Case, "test_it").failures
    assert f"rank 1 of 3 failed first: ValueError: {hook}" in text


def test_unittest_reports_a_skip_of_all_ranks():
    class Case(Sample):
        def test_it(self):
            self.skipTest(f"not on {self.world_size} ranks")

    [(_, reason)] = run_case(Case, "test_it").skipped
    assert reason == "not on 3 ranks"


def test_decorators_of_unittest_work():
    class Case(Sample):
        @unittest.skip("never")
        def test_skipped(self): ...

        @unittest.expectedFailure
        def test_expected(self):
            assert self.rank != 0

    assert run_case(Case, "test_skipped").skipped[0][1] == "never"
    assert len(run_case(Case, "test_expected").expectedFailures) == 1


def test_a_failing_subtest_is_a_failure_of_its_rank():
    class Case(Sample):
        def test_it(self):
            with self.subTest(n=1):
                assert self.rank != 2

    [(_, text)] = run_case(Case, "test_it").failures
    assert "rank 2 of 3 failed first" in text


def test_the_time_limit_of_a_class_applies():
    class Case(Sample):
        thread_timeout = 0.2

        def test_it(self):
            if self.rank:
                dist.barrier()

    [(_, text)] = run_case(Case, "test_it").failures
    assert "rank 1 of 3 timed out: not finished after 0.2 s (thread_timeout); it waited for its peers" in text
    assert "rank 0 passed" in text


def test_the_default_time_limit_is_that_of_torchs_variable(monkeypatch):
    monkeypatch.setenv("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "17")
    assert Sample().thread_timeout == 17
    monkeypatch.delenv("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT")
    assert Sample().thread_timeout == 300


def test_a_name_of_no_method_is_an_error():
    with pytest.raises(ValueError, match="no such test method"):
        Sample("test_nothing")


def test_comparisons_on_one_rank_use_only_that_rank():
    class Case(Sample):
        def test_it(self):
            self.assertEqualOnRank(self.rank, 1, rank=1)
            self.assertNotEqualOnRank(self.rank, 1)

        def test_bad(self):
            self.assertEqualOnRank(self.rank, 2, rank=1)

    assert run_case(Case, "test_it").wasSuccessful()
    assert "rank 1 of 3 failed first" in run_case(Case, "test_bad").failures[0][1]


def test_a_decorated_function_runs_in_each_rank_with_its_arguments():
    seen = []

    @spawn_threads_and_init_comms(world_size=3)
    def function(log, *, word):
        log.append((dist.get_rank(), word))

    function(seen, word="hello")
    assert sorted(seen) == [(rank, "hello") for rank in range(3)]


def test_a_decorated_function_that_fails_names_the_rank():
    @spawn_threads_and_init_comms(world_size=2, timeout=60)
    def function():
        assert dist.get_rank() == 0

    with pytest.raises(RankThreadError, match="rank 1 of 2 failed first"):
        function()


SUITE = """
    import pytest
    import torch
    import torch.distributed as dist
    from allranks.testing import MultiThreadedTestCase, require_gpus

    class TestThreads(MultiThreadedTestCase):
        world_size = 2

        @pytest.fixture(autouse=True)
        def folder(self, tmp_path):
            self.folder = tmp_path

        def test_good(self):
            tensor = torch.ones(2) * self.rank
            dist.all_reduce(tensor)
            self.assertEqual(tensor, [1, 1])
            (self.folder / str(self.rank)).touch()

        def test_bad(self):
            dist.barrier()
            assert self.rank == 0

        @pytest.mark.xfail(strict=True)
        def test_xfail(self):
            assert self.rank == 0

        @require_gpus(99)
        def test_skipped(self): ...
"""


def test_a_plain_pytest_runs_it_with_fixtures_and_marks(pytester, no_cell):  # noqa: ARG001 - environment
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_inprocess(*PLUGIN)
    result.assert_outcomes(passed=1, failed=1, xfailed=1, skipped=1)
    result.stdout.fnmatch_lines(["*RankThreadError: rank 1 of 2 failed first: AssertionError: assert 1 == 0"])


@pytest.mark.thorough
def test_unittest_runs_it_alone(pytester):
    suite = textwrap.dedent(SUITE).replace("self.folder / str(self.rank)", "__import__('pathlib').Path(str(self.rank))")
    pytester.makepyfile(test_suite=suite)
    result = pytester.run(sys.executable, "-m", "unittest", "test_suite.TestThreads.test_good")
    assert result.ret == 0, result.stderr.str()


def test_ranks_of_an_agent_run_it_without_a_process_group(run_gang):
    agent = run_gang({"test_it.py": SUITE})
    assert agent.outcomes("test_good") == ("passed", "passed")
    assert agent.outcomes("test_skipped") == ("skipped", "skipped")
    case = next(case for case in (agent.cases(rank)["test_bad"] for rank in range(2)) if case.outcome == "failed")
    assert "rank 1 of 2 failed first: AssertionError: assert 1 == 0" in case.message


def test_ranks_of_an_agent_that_run_only_threads_are_a_gang_without_a_group(run_gang):
    agent = run_gang(
        {
            "test_it.py": """
                from allranks.testing import MultiThreadedTestCase

                class TestThreads(MultiThreadedTestCase):
                    def setUp(self):
                        import os, torch.distributed as dist
                        assert not dist.is_initialized()

                    def test_it(self): ...
            """
        }
    )
    assert agent.outcomes("test_it") == ("passed", "passed")


def test_the_environment_is_restored():
    before = dict(os.environ)
    run_ranks(2, lambda _rank: dist.barrier(), LONG)
    assert dict(os.environ) == before

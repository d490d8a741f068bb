"""Unchanged tests of torch's MultiProcessTestCase under an agent."""

import pytest

BASE = """
    import ctypes, functools, os, signal, sys, time, unittest
    import pytest, torch
    import torch.distributed as dist
    from torch.testing._internal.common_distributed import MultiProcessTestCase
    from torch.testing._internal.common_utils import skip_but_pass_in_sandcastle, skip_but_pass_in_sandcastle_if

    def decorated(test):
        @functools.wraps(test)
        def wrapper(self):
            return test(self)
        return wrapper

    def say(word):
        with open(os.environ["WORDS"], "w") as words:
            words.write(f"{word}\\n")

    class Case(MultiProcessTestCase):
        @property
        def world_size(self):
            return 2

        @property
        def init_method(self):
            return f"file://{self.file_name}"

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def join(self):
            dist.init_process_group("gloo", init_method=self.init_method, rank=self.rank, world_size=self.world_size)
"""

SHARED = """
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    class TestShared(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def test_of_two_files(self): ...

        def test_is_wrong_in_two_files(self):
            assert self.rank == 0, "wrong on rank 1"
"""

ZOO = {
    "test_shared.py": SHARED,
    "test_shares.py": "from test_shared import TestShared",
    "test_zoo.py": BASE
    + """
    class TestTearDown(Case):
        def tearDown(self):
            super().tearDown()
            raise OSError("the tear-down is broken")

        @pytest.mark.xfail(raises=ValueError)
        def test_tear_down_fails_after_an_expected_failure(self):
            raise ValueError("expected")

    class TestRanks(Case):
        def test_passes(self):
            self.join()
            total = torch.tensor([self.rank + 1.0])
            dist.all_reduce(total)
            self.assertEqual(total, torch.tensor([3.0]))

        def test_fails_while_the_peer_waits(self):
            if self.rank == 1:
                print("this is rank 1")
                raise ValueError("rank 1 broke first")
            time.sleep(1000)  # rank 0 waits here

        def test_segfaults_while_rank_0_passes(self):
            if self.rank == 1:
                ctypes.string_at(0)

        def test_rank_1_skips_while_rank_0_passes(self):
            if self.rank == 1:
                self.skipTest("rank 1 alone")

        @pytest.mark.time_limit(1)
        def test_hangs_after_the_peer_passed(self):
            if self.rank == 1:
                time.sleep(1000)  # rank 1 hangs here

        def test_a_child_fails(self):
            child = os.fork() if self.rank == 1 else os.getpid()
            if child == 0:
                assert False, "the child is wrong"
            assert self.rank == 0 or os.waitpid(child, 0)[1] == 0

        @pytest.mark.xfail(raises=AssertionError)
        def test_fails_by_what_is_not_expected(self):
            raise ValueError("another")

        @pytest.mark.xfail(raises=(KeyError, ArithmeticError))
        def test_fails_by_what_is_expected(self):
            1 / 0

        @pytest.mark.xfail(raises=AssertionError)
        def test_fails_as_expected_by_an_assertion(self):
            assert self.rank == 7

        def test_all_skip(self):
            self.skipTest("nothing to do")

        def test_all_skip_with_code_77(self):
            sys.exit(77)

        def test_is_done_early(self):
            sys.exit(0)

        def test_leaves_with_0(self):
            if self.rank == 1:
                os._exit(0)

        def test_leaves_with_3(self):
            sys.exit(3)

        def test_is_seeded_as_by_torch(self):
            self.assertEqual(torch.initial_seed(), 1234)

        @unittest.expectedFailure
        def test_is_expected_to_fail(self):
            self.fail("known")

        @unittest.skip("the author says so")
        def test_is_skipped_by_its_author(self): ...

        @skip_but_pass_in_sandcastle("no NCCL here")
        def test_lacks_something(self): ...

        @skip_but_pass_in_sandcastle_if(True, "no NCCL here")
        def test_lacks_something_if(self): ...

        @skip_but_pass_in_sandcastle_if(False, "no NCCL here")
        def test_lacks_nothing(self): ...

    class TestExits(Case):
        def setUp(self):
            super().setUp()
            self.skip_return_code_checks = [self.test_any_end_will_do.__wrapped__]
            self.special_return_code_checks = {
                test.__wrapped__: -signal.SIGABRT for test in (self.test_rank_0_aborts, self.test_should_abort)
            }

        @decorated
        def test_any_end_will_do(self):
            os._exit(3 + self.rank)

        @decorated
        def test_rank_0_aborts(self):
            if self.rank == 0:
                os.abort()

        @decorated
        def test_should_abort(self): ...

    class TestRun(Case):
        destroy_pg_upon_exit = False

        @classmethod
        def _run(cls, rank, test_name, file_name, pipe, **kwargs):
            self = cls(test_name)
            self.rank = rank
            self.file_name = file_name
            if "cannot_join" in test_name and rank == 1:
                raise RuntimeError("no address")
            self.join()
            self.run_test(test_name, pipe)
            dist.barrier()
            dist.destroy_process_group()
            sys.exit(0)

        def test_with_a_run_of_its_own(self):
            dist.barrier()

        def test_cannot_join(self): ...

    class TestJudge(Case):
        def _check_return_codes(self, function, seconds):
            say(f"{sorted(p.exitcode for p in self.processes)} {seconds < 60}")
            self.assertEqual([p.exitcode for p in self.processes], [-6, 3])

        def test_a_class_can_check_exit_codes_itself(self):
            os.abort() if self.rank == 0 else os._exit(3)

        def test_a_class_can_override_the_check_of_exit_codes(self): ...

    class TestPipes(Case):
        def _spawn_processes(self):
            own = torch.multiprocessing.get_context("spawn").Process
            self._start_processes(lambda *given, args, **more: own(*given, args=("extra", *args), **more))

        @classmethod
        def _run(cls, extra, *args, **kwargs):
            assert extra == "extra"
            super()._run(*args, **kwargs)

        def _join_processes(self, fn):
            assert list(self.pid_to_pipe) == [p.pid for p in self.processes]
            self.processes[1].join()
            assert self.processes[1].exitcode == 0 and not self.processes[1].is_alive()
            super()._join_processes(fn)

        def test_has_processes_with_arguments_of_its_own(self): ...

    class TestStops(Case):
        def _join_processes(self, fn):
            self.skip_return_code_checks.append(fn)
            self.processes[0].terminate()
            self.processes[1].kill()
            self.processes[1].join()
            assert self.processes[1].exitcode == -signal.SIGKILL
            super()._join_processes(fn)

        def test_stops_its_ranks(self):
            time.sleep(1000)

    class TestNoRanks(MultiProcessTestCase):
        def test_starts_no_rank(self): ...

    class TestWithin(Case):
        def _spawn_processes(self): ...

        def join_or_run(self, fn):
            return fn

        def test_runs_in_the_launching_process(self):
            assert self.rank == self.MAIN_PROCESS_RANK

    def test_of_ranks(rank):
        assert dist.get_world_size() == 2

    @skip_but_pass_in_sandcastle("no NCCL here")
    def test_of_ranks_that_lack_something():
        assert False

    @skip_but_pass_in_sandcastle_if(True, "no NCCL here")
    class TestPlain:
        def test_in_a_plain_class(self):
            assert False
""",
}


@pytest.fixture(scope="module")
def zoo(run_once):
    environment = {"SANDCASTLE": "1", "TW_JOB_USER": "sandcastle"}
    return run_once("torch", ZOO, limits={"peer_grace": 1}, environment=environment)


@pytest.mark.parametrize(
    ("test", "outcomes"),
    [
        ("test_passes", ("passed", "passed")),
        ("test_fails_while_the_peer_waits", ("aborted", "failed")),
        ("test_segfaults_while_rank_0_passes", ("passed", "crashed")),
        ("test_rank_1_skips_while_rank_0_passes", ("passed", "skipped")),
        ("test_hangs_after_the_peer_passed", ("passed", "timed_out")),
        ("test_a_child_fails", ("passed", "failed")),
        ("test_fails_by_what_is_not_expected", ("failed", "failed")),
        ("test_fails_by_what_is_expected", ("xfailed", "xfailed")),
        ("test_fails_as_expected_by_an_assertion", ("xfailed", "xfailed")),
        ("test_tear_down_fails_after_an_expected_failure", ("errored", "xfailed")),
        ("test_all_skip", ("skipped", "skipped")),
        ("test_all_skip_with_code_77", ("skipped", "skipped")),
        ("test_is_done_early", ("passed", "passed")),
        ("test_leaves_with_0", ("passed", "crashed")),
        ("test_leaves_with_3", ("crashed", "crashed")),
        ("test_is_seeded_as_by_torch", ("passed", "passed")),
        ("test_is_expected_to_fail", ("xfailed", "xfailed")),
        ("test_is_skipped_by_its_author", ("skipped", "skipped")),
        ("test_lacks_something", ("skipped", "skipped")),
        ("test_lacks_nothing", ("passed", "passed")),
        ("test_any_end_will_do", ("passed", "passed")),
        ("test_rank_0_aborts", ("passed", "passed")),
        ("test_should_abort", ("failed", "passed")),
        ("test_with_a_run_of_its_own", ("passed", "passed")),
        ("test_cannot_join", ("aborted", "failed")),
        ("test_a_class_can_check_exit_codes_itself", ("passed", "passed")),
        ("test_a_class_can_override_the_check_of_exit_codes", ("failed", "passed")),
        ("test_has_processes_with_arguments_of_its_own", ("passed", "passed")),
        ("test_stops_its_ranks", ("passed", "passed")),
        ("test_starts_no_rank", ("failed", "aborted")),
        ("test_runs_in_the_launching_process", ("passed", "passed")),
        ("test_of_ranks", ("passed", "passed")),
        ("test_of_ranks_that_lack_something", ("skipped", "skipped")),
        ("test_in_a_plain_class", ("skipped", "skipped")),
    ],
)
def test_each_rank_has_its_own_outcome(zoo, test, outcomes):
    assert zoo.outcomes(test) == outcomes


def test_a_class_that_two_files_import_runs_in_both(zoo):
    ends = [(end.nodeid.split("/")[-1], end.rank, end.outcome) for end in zoo.ends if "TestShared" in end.nodeid]
    names = [f"test_share{each}.py::TestShared::test_" for each in ("d", "s")]
    good = [(f"{name}of_two_files", rank, "passed") for name in names for rank in (0, 1)]
    bad = [(f"{name}is_wrong_in_two_files", rank, ("passed", "failed")[rank]) for name in names for rank in (0, 1)]
    assert sorted(ends) == sorted([*good, *bad])


@pytest.mark.parametrize(
    ("test", "rank", "message"),
    [
        ("test_fails_while_the_peer_waits", 1, "ValueError: rank 1 broke first"),
        ("test_segfaults_while_rank_0_passes", 1, "rank 1 was killed by SIGSEGV; it was in "),
        (
            "test_hangs_after_the_peer_passed",
            1,
            "not finished after 1 s (@pytest.mark.time_limit), in the call of this test; it was",
        ),
        ("test_cannot_join", 1, "RuntimeError: no address"),
        ("test_leaves_with_0", 1, "rank 1 exited with code 0 during the test"),
        ("test_should_abort", 0, "the launching process: AssertionError: rank 0 must exit with status -6"),
        ("test_starts_no_rank", 0, "the launching process: RuntimeError: no rank was started"),
    ],
)
def test_the_first_cause_leads(zoo, test, rank, message):
    first = next(event for event in zoo.arrived(test) if not event.consequence and event.outcome != "passed")
    assert (first.rank, first.message[: len(message)]) == (rank, message)


def test_a_failure_has_the_ranks_own_traceback_and_output(zoo):
    case = zoo.cases(1)["test_fails_while_the_peer_waits"]
    assert 'raise ValueError("rank 1 broke first")' in case.text
    assert "SystemExit" not in case.text
    assert case.stdout == "this is rank 1\n"


def test_a_hanging_rank_is_found_where_it_is(zoo):
    case = zoo.cases(1)["test_hangs_after_the_peer_passed"]
    assert "in test_hangs_after_the_peer_passed" in case.message


@pytest.mark.parametrize(
    ("test", "kind", "reason"),
    [
        ("test_all_skip", "plain", "nothing to do"),
        ("test_all_skip_with_code_77", "hardware", "Need at least 2 CUDA devices"),
        ("test_is_skipped_by_its_author", "plain", "the author says so"),
        ("test_lacks_something", "environment", "no NCCL here"),
        ("test_lacks_something_if", "environment", "no NCCL here"),
        ("test_of_ranks_that_lack_something", "environment", "no NCCL here"),
        ("test_in_a_plain_class", "environment", "no NCCL here"),
    ],
)
def test_a_skip_keeps_its_kind_and_reason(zoo, test, kind, reason):
    for rank in range(2):
        case = zoo.cases(rank)[test]
        assert (case.properties["skip_kind"], case.message) == (kind, reason)


def test_a_class_sees_how_its_ranks_have_ended(zoo):
    assert zoo.words() == ["[-6, 3] True", "[0, 0] True"]


def test_no_invalid_process_id_is_shown(zoo):
    assert "Started process" not in "".join(path.read_text() for path in zoo.results.rglob("*.log"))


def test_nothing_is_left(zoo):
    zoo.assert_nothing_left()

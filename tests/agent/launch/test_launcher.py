"""Multi-process tests under an agent: every rank has an outcome, and so has the launching process."""

import signal

import pytest

from allranks.protocol.records import NotRun, Printed, TestStarted

BASE = """
    import ctypes, functools, os, signal, subprocess, sys, time, unittest
    import pytest, torch
    import torch.distributed as dist
    from allranks.testing import EnvironmentSkip, MultiProcessTestCase, SkipCode

    def say(word):
        with open(os.environ["WORDS"], "w") as words:
            words.write(f"{word}\\n")

    class Case(MultiProcessTestCase):
        @property
        def world_size(self):
            return 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def join(self):
            dist.init_process_group("gloo", init_method=self.init_method, rank=self.rank, world_size=self.world_size)
"""

ZOO = {
    "test_zoo.py": BASE
    + """
    class TestRanks(Case):
        def test_passes(self):
            self.join()
            total = torch.tensor([self.rank + 1.0])
            dist.all_reduce(total)
            self.assertEqual(total, torch.tensor([3.0]))

        def test_fails_while_the_peer_waits(self):
            self.join()
            if self.rank == 1:
                print("this is rank 1")
                raise ValueError("rank 1 broke first")
            time.sleep(1000)  # rank 0 waits here

        def test_segfaults_while_rank_0_passes(self):
            if self.rank == 1:
                ctypes.string_at(0)

        def test_rank_1_skips_while_rank_0_passes(self):
            if self.rank == 1:
                raise unittest.SkipTest("rank 1 alone")

        def test_all_skip_with_code_77(self):
            sys.exit(77)

        def test_all_leave_with_code_77(self):
            os._exit(77)

        def test_all_skip(self):
            self.skipTest("nothing to do")

        def test_all_lack_something(self):
            raise EnvironmentSkip(SkipCode.NO_CUDA)

        @pytest.mark.time_limit(1)
        def test_hangs_after_the_peer_passed(self):
            if self.rank == 1:
                time.sleep(1000)  # rank 1 hangs here

        def test_leaves_with_0(self):
            if self.rank == 1:
                os._exit(0)

        def test_leaves_a_process(self):
            subprocess.Popen(["sleep", "1000"])

        def test_fails_in_a_subtest(self):
            for number in range(3):
                with self.subTest(number=number):
                    self.assertNotEqual(number, 1)

        @pytest.mark.xfail(reason="known")
        def test_is_expected_to_fail(self):
            assert self.rank == 5

        @pytest.mark.xfail(reason="known")
        def test_is_expected_to_fail_while_the_peer_waits(self):
            if self.rank == 1:
                raise ValueError("known")
            time.sleep(1000)

        @pytest.mark.xfail(reason="known")
        def test_crashes_against_expectation(self):
            os.abort()

        @unittest.expectedFailure
        def test_is_expected_to_fail_by_unittest(self):
            assert self.rank == 5

        @pytest.mark.xfail(reason="known", strict=True)
        def test_passes_against_expectation(self):
            pass

        @unittest.skip("the class says so")
        def test_is_skipped_before_set_up(self):
            pass

        def test_clean_up_fails_in_rank_1(self):
            self.addCleanup(lambda: self.assertEqual(self.rank, 0))

        def test_tells_its_seed(self):
            raise AssertionError("seed " + os.environ["ALLRANKS_SEED"])

        def test_knows_its_place(self):
            assert os.environ["RANK"] == str(self.rank)
            assert os.environ["WORLD_SIZE"] == "2"
            assert os.path.getsize(self.file_name) == 0

    class TestFour(Case):
        @property
        def world_size(self):
            return 4

        def test_rank_3_fails(self):
            self.assertNotEqual(self.rank, 3)

    def decorated(test):  # torch's suites have decorators at such tests, and refer to what is within
        @functools.wraps(test)
        def wrapper(self):
            return test(self)
        return wrapper

    class TestExits(Case):
        def setUp(self):
            super().setUp()
            tests = (self.test_any_end_will_do, self.test_but_no_exception)
            self.skip_return_code_checks = [test.__wrapped__ for test in tests]
            self.special_return_code_checks = {
                self.test_rank_0_aborts.__wrapped__: -signal.SIGABRT,
                self.test_rank_0_should_have_aborted.__wrapped__: -signal.SIGABRT,
            }

        @decorated
        def test_any_end_will_do(self):
            os._exit(3 + self.rank)

        @decorated
        def test_but_no_exception(self):
            if self.rank == 0:
                raise ValueError("this counts")

        @decorated
        def test_rank_0_aborts(self):
            if self.rank == 0:
                os.abort()

        @decorated
        def test_rank_0_should_have_aborted(self):
            pass

        def test_other_ends_are_crashes(self):
            os._exit(3)

    class TestLaunchingProcess(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            if "set_up_fails" in self.id():
                print("about to fail")
                raise RuntimeError("no port is free")
            if "set_up_skips" in self.id():
                raise unittest.SkipTest("no hardware")
            if "starts_no_rank" not in self.id():
                self._spawn_processes()
            if "fails_after_the_start" in self.id():
                raise RuntimeError("too late")
            if "dies" in self.id():
                os.kill(os.getpid(), signal.SIGKILL)
            if "set_up_hangs" in self.id():
                time.sleep(1000)  # the launching process hangs here

        def tearDown(self):
            super().tearDown()
            if "tear_down_fails" in self.id():
                raise RuntimeError("the folder is not empty")

        def test_set_up_fails(self): ...
        def test_set_up_skips(self): ...
        def test_starts_no_rank(self): ...
        def test_fails_after_the_start(self):
            time.sleep(1000)
        def test_dies(self):
            time.sleep(1000)
        @pytest.mark.time_limit(0.5)
        def test_set_up_hangs(self):
            time.sleep(1000)
        def test_tear_down_fails(self): ...
        def test_rank_and_tear_down_fails(self):
            assert self.rank == 0, "rank 1 is wrong"
        def test_last(self): ...

    def test_of_ranks(rank):
        assert dist.get_world_size() == 2
"""
}


@pytest.fixture(scope="module")
def zoo(run_once):
    return run_once("launchers", ZOO, limits={"peer_grace": 0.3})


def cases(zoo, test, ranks=2):
    return [zoo.cases(rank)[test] for rank in range(ranks)]


@pytest.mark.parametrize(
    ("test", "outcomes"),
    [
        ("test_passes", ("passed", "passed")),
        ("test_fails_while_the_peer_waits", ("aborted", "failed")),
        ("test_segfaults_while_rank_0_passes", ("passed", "crashed")),
        ("test_rank_1_skips_while_rank_0_passes", ("passed", "skipped")),
        ("test_all_skip_with_code_77", ("skipped", "skipped")),
        ("test_all_leave_with_code_77", ("skipped", "skipped")),
        ("test_all_skip", ("skipped", "skipped")),
        ("test_all_lack_something", ("skipped", "skipped")),
        ("test_hangs_after_the_peer_passed", ("passed", "timed_out")),
        ("test_leaves_with_0", ("passed", "crashed")),
        ("test_leaves_a_process", ("passed", "passed")),
        ("test_fails_in_a_subtest", ("failed", "failed")),
        ("test_is_expected_to_fail", ("xfailed", "xfailed")),
        ("test_is_expected_to_fail_while_the_peer_waits", ("xfailed", "xfailed")),
        ("test_crashes_against_expectation", ("crashed", "crashed")),
        ("test_is_expected_to_fail_by_unittest", ("xfailed", "xfailed")),
        ("test_passes_against_expectation", ("failed", "passed")),
        ("test_is_skipped_before_set_up", ("skipped", "skipped")),
        ("test_clean_up_fails_in_rank_1", ("passed", "failed")),
        ("test_knows_its_place", ("passed", "passed")),
        ("test_rank_3_fails", ("passed", "passed", "passed", "failed")),
        ("test_any_end_will_do", ("passed", "passed")),
        ("test_but_no_exception", ("failed", "passed")),
        ("test_rank_0_aborts", ("passed", "passed")),
        ("test_rank_0_should_have_aborted", ("failed", "passed")),
        ("test_other_ends_are_crashes", ("crashed", "crashed")),
        ("test_set_up_fails", ("failed", "aborted")),
        ("test_set_up_skips", ("skipped", "skipped")),
        ("test_starts_no_rank", ("failed", "aborted")),
        ("test_fails_after_the_start", ("failed", "aborted")),
        ("test_dies", ("crashed", "aborted")),
        ("test_set_up_hangs", ("timed_out", "aborted")),
        ("test_tear_down_fails", ("failed", "passed")),
        ("test_rank_and_tear_down_fails", ("errored", "failed")),
        ("test_last", ("passed", "passed")),
        ("test_of_ranks", ("passed", "passed")),
    ],
)
def test_each_rank_has_its_own_outcome(zoo, test, outcomes):
    assert tuple(case.outcome for case in cases(zoo, test, len(outcomes))) == outcomes


def leader(zoo, test):
    return next(event for event in zoo.arrived(test) if not event.consequence)


@pytest.mark.parametrize(
    ("test", "rank", "message"),
    [
        ("test_fails_while_the_peer_waits", 1, "ValueError: rank 1 broke first"),
        ("test_segfaults_while_rank_0_passes", 1, "rank 1 was killed by SIGSEGV"),
        ("test_rank_3_fails", 3, "AssertionError: 3 == 3"),
        ("test_set_up_fails", 0, "the launching process: RuntimeError: no port is free"),
        ("test_starts_no_rank", 0, "the launching process: RuntimeError: no rank was started"),
        ("test_fails_after_the_start", 0, "the launching process: RuntimeError: too late"),
        ("test_dies", 0, "the launching process was killed by SIGKILL"),
        (
            "test_set_up_hangs",
            0,
            "the launching process timed out: not finished after 5.8 s (@pytest.mark.time_limit = ",
        ),
        ("test_tear_down_fails", 0, "the launching process: RuntimeError: the folder is not empty"),
        ("test_rank_and_tear_down_fails", 1, "AssertionError: rank 1 is wrong"),
        ("test_rank_0_should_have_aborted", 0, "the launching process: AssertionError: rank 0 must exit with status"),
    ],
)
def test_the_first_cause_leads(zoo, test, rank, message):
    bad = [event for event in zoo.arrived(test) if event.outcome not in ("passed", "skipped")]
    first = next(event for event in bad if not event.consequence)
    assert first.rank == rank
    assert first.message.startswith(message)


def test_a_launcher_failure_that_repeats_a_ranks_failure_is_reported_once(zoo):
    [*arrived] = zoo.arrived("test_fails_while_the_peer_waits")
    assert sorted(event.rank for event in arrived) == [0, 1]
    assert "launching process" not in str(arrived)


def test_a_failure_has_the_ranks_own_traceback_and_output(zoo):
    case = zoo.cases(1)["test_fails_while_the_peer_waits"]
    assert 'raise ValueError("rank 1 broke first")' in case.text
    assert "allranks" not in case.text
    assert case.stdout == "this is rank 1\n"


def test_a_hanging_rank_is_found_where_it_is(zoo):
    case = zoo.cases(1)["test_hangs_after_the_peer_passed"]
    assert "not finished after 1 s (@pytest.mark.time_limit), in the call of this test; it was in " in case.message
    assert "in test_hangs_after_the_peer_passed" in case.message


def test_an_aborted_rank_names_the_first_failed_rank(zoo):
    case = zoo.cases(0)["test_fails_while_the_peer_waits"]
    assert case.message.startswith("aborted by rank 1 at ")


def test_the_output_of_a_launching_process_that_failed_is_kept(zoo):
    assert zoo.cases(0)["test_set_up_fails"].stdout == "about to fail\n"


def test_a_test_can_set_its_world_size(zoo):
    assert zoo.cases(3)["test_rank_3_fails"].properties["world_size"] == "4"
    assert zoo.cases(0)["test_passes"].properties["world_size"] == "2"


def test_ranks_beyond_the_cell_have_outcomes_only_in_their_own_tests(zoo):
    assert {end.nodeid.rpartition("::")[2] for end in zoo.ends if end.rank == 3} == {"test_rank_3_fails"}


@pytest.mark.parametrize(
    ("test", "kind", "code"),
    [
        ("test_all_skip_with_code_77", "hardware", "77"),
        ("test_all_leave_with_code_77", "hardware", "77"),
        ("test_all_lack_something", "hardware", "74"),
        ("test_all_skip", "plain", None),
        ("test_set_up_skips", "plain", None),
    ],
)
def test_a_skip_keeps_its_kind_and_code(zoo, test, kind, code):
    for case in cases(zoo, test):
        assert (case.properties["skip_kind"], case.properties.get("skip_code")) == (kind, code)


def test_a_process_that_a_rank_left_behind_is_killed(zoo):
    zoo.assert_nothing_left()


def test_all_ranks_of_a_test_have_the_seed_that_was_reported(zoo):
    seeds = {record.nodeid.rpartition("::")[2]: str(record.seed) for record in zoo.all(TestStarted)}
    assert zoo.cases(0)["test_tells_its_seed"].message == f"AssertionError: seed {seeds['test_tells_its_seed']}"
    assert zoo.cases(1)["test_tells_its_seed"].message == f"AssertionError: seed {seeds['test_tells_its_seed']}"


def test_the_driver_is_no_rank(zoo):
    assert {end.rank for end in zoo.ends} == {0, 1, 2, 3}
    assert (zoo.results / "driver").is_dir()


def test_a_killed_agent_leaves_no_rank(start_agent):
    agent = start_agent(
        {
            "test_hang.py": BASE
            + """
    class TestHang(Case):
        def test_hangs(self):
            say(self.rank)
            time.sleep(1000)
    """
        }
    ).go()
    assert {agent.word(), agent.word()} == {"0", "1"}
    agent.signal(signal.SIGKILL)
    agent.assert_nothing_left()


def test_an_expected_failure_of_the_launching_process_is_an_expected_failure(run_agent):
    tests = """
    class TestX(Case):
        @pytest.mark.xfail(reason="known")
        def test_a(self): ...

        @pytest.mark.xfail(reason="known")
        def test_b(self): ...

        def tearDown(self):
            super().tearDown()
            if self._testMethodName == "test_a":
                raise ValueError("in the launching process")
    """
    agent = run_agent({"test_x.py": BASE + tests})
    assert agent.outcomes("test_a") == ("xfailed", "xfailed")
    assert {end.message for end in agent.arrived("test_a")} == {"known"}
    assert agent.outcomes("test_b") == ("xpassed", "xpassed")


def test_maxfail_counts_multi_process_tests(run_agent):
    agent = run_agent(
        {
            "test_x.py": BASE
            + """
    class TestX(Case):
        @pytest.mark.xfail(reason="known")
        def test_0(self):
            assert self.rank == 0

        def test_a(self):
            assert self.rank == 0

        def test_b(self): ...
    """
        },
        pytest_args=("-x",),
    )
    [not_run] = agent.all(NotRun)
    assert not_run.tests == ("suite/test_x.py::TestX::test_b",)


def test_the_output_of_ranks_is_streamed_on_request(start_agent):
    agent = start_agent(
        {
            "test_print.py": BASE
            + """
    class TestPrint(Case):
        def test_prints(self):
            print("here")
    """
        },
        pytest_args=("-s",),
    ).go()
    agent.wait_for(Printed)
    assert agent.wait() == 0


@pytest.mark.thorough
def test_a_suite_written_for_torchs_class_may_override_run(run_agent):
    agent = run_agent(
        {
            "test_run.py": BASE
            + """
    class TestRun(Case):
        destroy_pg_upon_exit = False

        @classmethod
        def _run(cls, rank, test_name, file_name, pipe, **kwargs):
            self = cls(test_name)
            self.rank = rank
            self.file_name = file_name
            self.join()
            self.run_test(test_name, pipe)
            dist.barrier()
            dist.destroy_process_group()
            sys.exit(0)

        def test_has_a_group(self):
            assert dist.get_world_size() == 2

        def test_fails(self):
            assert self.rank == 0
    """
        }
    )
    assert agent.outcomes("test_has_a_group") == ("passed", "passed")
    assert agent.cases(1)["test_fails"].outcome == "failed"


SKIPPED = {
    "test_skipped.py": BASE
    + """
    class TestSome(Case):
        @unittest.skip("first reason")
        def test_a(self): ...

        @pytest.mark.skip(reason="second reason")
        def test_b(self): ...

        def test_c(self):
            pass

        @unittest.skip("third reason")
        def test_d(self): ...
"""
}


@pytest.mark.thorough
def test_adjacent_skipped_tests_share_a_launching_process(run_agent):
    agent = run_agent(SKIPPED)
    messages = {name: case.message for name, case in agent.cases(1).items()}
    assert messages == {"test_a": "first reason", "test_b": "second reason", "test_c": "", "test_d": "third reason"}
    assert len(agent.gangs()) == 3

"""The outcome of each fault of a test: a suite of faults, run once, with one test here for each."""

import itertools

import pytest

from allranks.protocol import skip_codes
from allranks.protocol.records import Collected, Finished, GangStarted, LeftBehind, TestStarted

ZOO = {
    "conftest.py": """
        import pytest

        @pytest.fixture
        def from_conftest():
            return "from conftest"
    """,
    "test_zoo.py": """
        import ctypes, os, random, signal, subprocess, sys, unittest
        import pytest
        import torch
        import torch.distributed as dist
        from allranks.testing import EnvironmentSkip, SkipCode

        RANK = None

        @pytest.fixture(autouse=True)
        def know_rank(rank):
            global RANK
            RANK = rank

        def test_passes(rank, world_size, backend):
            total = torch.tensor([rank + 1.0])
            dist.all_reduce(total)
            assert total.item() == 3.0
            assert (world_size, backend) == (2, "gloo")

        def test_fails_on_rank_1():
            assert RANK == 0, "only rank 0 is right"

        def test_fails_while_the_peer_waits():
            if RANK == 0:
                raise RuntimeError("rank 0 broke first")
            dist.barrier()  # rank 1 waits here

        def test_killed_while_the_peer_waits():
            if RANK == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.barrier()

        def test_segfaults():
            if RANK == 0:
                ctypes.string_at(0)  # rank 0 dies here

        def test_aborts():
            os.abort()

        def test_leaves_with_0():
            if RANK == 1:
                os._exit(0)

        def test_leaves_with_3():
            os._exit(3)

        def test_sys_exit_0():
            sys.exit(0)

        def test_sys_exit_5():
            sys.exit(5)

        def test_sys_exit_with_a_list():
            sys.exit(["neither", "number", "nor", "text"])

        def test_sys_exit_76():
            sys.exit(76)

        def test_os_exit_77():
            os._exit(77)

        def test_os_exit_77_on_rank_0():
            if RANK == 0:
                os._exit(77)

        def test_pytest_exit():
            pytest.exit("enough")

        def test_interrupts_itself():
            raise KeyboardInterrupt

        def test_skips():
            pytest.skip("not today")

        @pytest.mark.skip(reason="never")
        def test_marked_skip():
            pass

        def test_unittest_skip():
            raise unittest.SkipTest("from unittest")

        def test_environment_skip():
            raise EnvironmentSkip(SkipCode.ODD_WORLD_SIZE, "2 ranks")

        @pytest.mark.xfail(reason="known")
        def test_xfails():
            assert False

        @pytest.mark.xfail(reason="cured")
        def test_xpasses():
            pass

        @pytest.mark.xfail(reason="cured", strict=True)
        def test_xpasses_strictly():
            pass

        @pytest.fixture
        def broken():
            raise OSError("fixture broke")

        def test_setup_error(broken):
            pass

        @pytest.fixture
        def breaks_later():
            yield
            raise OSError("teardown broke")

        def test_teardown_error(breaks_later):
            pass

        @pytest.fixture
        def exits():
            sys.exit(4)

        def test_fixture_exits(exits):
            pass

        @pytest.fixture(scope="module")
        def exits_for_all():
            sys.exit(76)

        def test_wide_fixture_skips_by_an_exit(exits_for_all):
            pass

        def test_wide_fixture_skips_again(exits_for_all):
            pass

        def test_asks_pytest_to_stop(request):
            request.session.shouldstop = "enough"

        def test_asks_pytest_to_fail(request):
            request.session.shouldfail = "too much"

        def test_a_child_fails():
            child = os.fork() if RANK == 1 else os.getpid()
            if child == 0:
                assert RANK is None, "the child is wrong"
            assert RANK == 0 or os.waitpid(child, 0)[1] == 0, "as the child"

        def test_orphan():
            if os.fork() == 0:
                os.setsid()
                while True:
                    signal.pause()  # until it is killed

        def test_leaves_a_server(rank):
            if rank == 1:
                subprocess.Popen(["sleep", "1000"])

        def test_prints_and_dies():
            print("last words", end="")
            ctypes.CDLL(None).printf(b"in C\\n")
            os.kill(os.getpid(), signal.SIGKILL)

        def test_floods():
            for _ in range(40):
                os.write(1, b"first\\n" + b"x" * 1_000_000 + b"\\nlast\\n")
            assert False

        def test_output_of_a_failure():
            print(f"print of rank {RANK}")
            sys.stderr.write(f"stderr of rank {RANK}\\n")
            os.write(1, b"descriptor of rank %d\\n" % RANK)
            libc = ctypes.CDLL(None)
            libc.puts(b"C of rank %d" % RANK)
            libc.fflush(None)
            assert False

        def test_big_output():
            print("first\\n" + "x" * 1_000_000 + "\\nlast")
            assert False

        def test_big_message():
            raise ValueError("y" * 1_000_000)

        def test_big_skip():
            pytest.skip("z" * 1_000_000)

        def test_strange_output():
            os.write(1, b"\\x00\\x1b[31m\\xff\\xfe]]>&<\\n")
            assert False, "\\x00\\ud800\\uffff"

        def test_random_numbers():
            ours = [random.random(), torch.rand(()).item()]
            both = [None, None]
            dist.all_gather_object(both, ours)
            assert both[0] == both[1]

        @pytest.mark.parametrize("text", ["a::b", "[x]", "ü", "a b", "x/y", ""])
        def test_ids(text):
            pass

        class TestClass:
            def test_in_class(self, from_conftest):
                assert from_conftest == "from conftest"

        class Case(unittest.TestCase):
            def setUp(self):
                self.ready = True

            def test_in_case(self):
                self.assertTrue(self.ready)

            @unittest.skip("by decorator")
            def test_skipped_in_case(self):
                pass

            async def test_is_never_awaited(self):
                self.fail("not run")

            def test_subtests(self):
                for number in range(3):
                    with self.subTest(number=number):
                        self.assertNotEqual(number, 1)

        def test_destroys_the_process_group():
            dist.destroy_process_group()

        def test_after_the_process_group_was_destroyed():
            dist.barrier()

        def test_closes_descriptors():
            if RANK == 1:
                os.closerange(3, 51)

        def test_closes_stdout_and_dies():
            sys.__stdout__.close()
            os.closerange(3, 51)

        def test_has_no_sandcastle():
            assert "SANDCASTLE" not in os.environ and "TW_JOB_USER" not in os.environ

        def test_signals_have_their_usual_effect():
            for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGIO):
                assert signal.getsignal(number) is signal.SIG_DFL
            assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])

        def test_after_all_that(rank):
            dist.barrier()
    """,
}


@pytest.fixture(scope="session")
def zoo(run_once):
    return run_once("zoo", ZOO, environment={"SANDCASTLE": "1", "TW_JOB_USER": "sandcastle"})


def test_a_forked_child_that_fails_exits_with_its_error(zoo):
    assert zoo.outcomes("test_a_child_fails") == ("passed", "failed")
    assert "the child is wrong" in zoo.cases(1)["test_a_child_fails"].stderr


def test_a_coroutine_that_its_class_only_calls_is_an_error(zoo):
    assert zoo.outcomes("test_is_never_awaited") == ("errored", "errored")


def line_of(mark, suite):
    return next(number for number, line in enumerate(suite.splitlines(), start=1) if mark in line)


def test_a_collective_of_all_ranks_passes(zoo):
    assert zoo.outcomes("test_passes") == ("passed", "passed")


def test_a_test_may_fail_on_one_rank_only(zoo):
    assert zoo.outcomes("test_fails_on_rank_1") == ("passed", "failed")
    assert "only rank 0 is right" in zoo.cases(1)["test_fails_on_rank_1"].message


def test_a_peer_that_waits_for_a_failed_rank_is_aborted_with_its_line(zoo):
    assert zoo.outcomes("test_fails_while_the_peer_waits") == ("failed", "aborted")
    peer = zoo.cases(1)["test_fails_while_the_peer_waits"]
    where = f"test_zoo.py:{line_of('rank 1 waits here', ZOO['test_zoo.py'])} in test_fails_while_the_peer_waits"
    assert peer.message.startswith("aborted by rank 0 while waiting at ")
    assert peer.message.endswith(where)
    assert (peer.properties["caused_by"], peer.properties["consequence"]) == ("0", "True")


def test_the_rank_that_failed_first_is_no_consequence(zoo):
    properties = zoo.cases(0)["test_fails_while_the_peer_waits"].properties
    assert properties["consequence"] == "False"
    assert float(properties["at"]) <= float(zoo.cases(1)["test_fails_while_the_peer_waits"].properties["at"])


def test_a_killed_rank_leads_and_its_peer_is_a_consequence(zoo):
    first, second = zoo.arrived("test_killed_while_the_peer_waits")
    assert (first.rank, first.outcome, first.message) == (1, "crashed", "rank 1 was killed by SIGKILL")
    assert (second.rank, second.consequence) == (0, True)


def test_a_segmentation_fault_names_signal_and_line(zoo):
    assert zoo.outcomes("test_segfaults") == ("crashed", "passed")
    case = zoo.cases(0)["test_segfaults"]
    assert case.message.startswith("rank 0 was killed by SIGSEGV; it was in ")
    assert case.message.endswith(f"test_zoo.py:{line_of('rank 0 dies here', ZOO['test_zoo.py'])} in test_segfaults")
    assert "Segmentation fault" in case.text


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ("test_aborts", "rank 1 was killed by SIGABRT; it was in "),
        ("test_leaves_with_0", "rank 1 exited with code 0 during the test"),
        ("test_leaves_with_3", "rank 1 exited with code 3 during the test; it was in "),
        ("test_sys_exit_0", "SystemExit: 0"),
        ("test_sys_exit_5", "SystemExit: 5"),
        ("test_sys_exit_with_a_list", "SystemExit: ['neither', 'number', 'nor', 'text']"),
        ("test_fixture_exits", "SystemExit: 4"),
        ("test_pytest_exit", "the test aborted the whole session: Exit('enough')"),
        ("test_interrupts_itself", "the test aborted the whole session: KeyboardInterrupt()"),
        ("test_closes_descriptors", ""),
    ],
)
def test_an_exit_in_a_test_is_a_crash_with_its_status(zoo, test, message):
    case = zoo.cases(1)[test]
    assert case.outcome == "crashed"
    assert case.message.startswith(message)


def test_an_exit_of_one_rank_leaves_the_other_its_own_outcome(zoo):
    assert zoo.outcomes("test_leaves_with_0") == ("passed", "crashed")


@pytest.mark.parametrize(
    ("test", "kind", "code", "reason"),
    [
        ("test_sys_exit_76", "environment", "76", skip_codes.reason_of_exit(76)),
        ("test_os_exit_77", "hardware", "77", skip_codes.reason_of_exit(77)),
        ("test_os_exit_77_on_rank_0", "hardware", "77", skip_codes.reason_of_exit(77)),
        ("test_wide_fixture_skips_by_an_exit", "environment", "76", skip_codes.reason_of_exit(76)),
        ("test_wide_fixture_skips_again", "environment", "76", skip_codes.reason_of_exit(76)),
        ("test_environment_skip", "environment", "87", "this test needs an even number of ranks: 2 ranks"),
        ("test_skips", "plain", None, "not today"),
        ("test_marked_skip", "plain", None, "never"),
        ("test_unittest_skip", "plain", None, "from unittest"),
        ("test_skipped_in_case", "plain", None, "by decorator"),
    ],
)
def test_a_skip_keeps_its_kind_code_and_reason(zoo, test, kind, code, reason):
    case = zoo.cases(0)[test]
    assert (case.outcome, case.message) == ("skipped", reason)
    assert (case.properties["skip_kind"], case.properties.get("skip_code")) == (kind, code)


def test_a_rank_may_skip_by_an_exit_code_while_its_peer_passes(zoo):
    assert zoo.outcomes("test_os_exit_77_on_rank_0") == ("skipped", "passed")


@pytest.mark.parametrize(
    ("test", "outcome", "message"),
    [
        ("test_xfails", "xfailed", "known"),
        ("test_xpasses", "xpassed", "cured"),
        ("test_xpasses_strictly", "failed", "[XPASS(strict)] cured"),
        ("test_setup_error", "errored", "OSError: fixture broke"),
        ("test_teardown_error", "errored", "OSError: teardown broke"),
        ("test_subtests", "failed", "AssertionError: 1 == 1"),
        ("test_asks_pytest_to_stop", "errored", "the test or a hook requested the end of pytest's session: enough"),
        ("test_asks_pytest_to_fail", "errored", "the test or a hook requested the end of pytest's session: too much"),
    ],
)
def test_pytests_own_outcomes_are_kept(zoo, test, outcome, message):
    assert zoo.outcomes(test) == (outcome, outcome)
    assert zoo.cases(0)[test].message == message


def test_the_deciding_phase_is_recorded(zoo):
    assert zoo.cases(0)["test_setup_error"].properties["phase"] == "setup"
    assert zoo.cases(0)["test_teardown_error"].properties["phase"] == "teardown"


def test_a_child_that_outlives_its_rank_is_gone_when_the_agent_is(zoo):
    assert zoo.outcomes("test_orphan") == ("passed", "passed")
    zoo.assert_nothing_left()


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("source", ["print of", "descriptor of", "C of"])
def test_output_of_every_source_is_captured_for_its_rank(zoo, rank, source):
    stdout = zoo.cases(rank)["test_output_of_a_failure"].stdout
    assert f"{source} rank {rank}\n" in stdout
    assert f"rank {1 - rank}" not in stdout


def test_the_last_output_of_a_killed_rank_is_kept(zoo):
    stdout = zoo.cases(0)["test_prints_and_dies"].stdout
    assert "last words" in stdout
    assert "in C" in stdout


def test_a_flood_of_output_is_cut_in_the_middle(zoo):
    stdout = zoo.cases(0)["test_floods"].stdout
    assert stdout.startswith("first\n")
    assert stdout.endswith("last\n")
    assert len(stdout) < 70_000
    assert (zoo.results / "rank-0.log").stat().st_size < 4_000_000


def test_a_process_left_behind_is_reported_with_its_rank(zoo):
    left = [event for event in zoo.all(LeftBehind) if event.command == "sleep 1000"]
    assert [event.rank for event in left] == [1]


def test_standard_error_is_captured_separately(zoo):
    case = zoo.cases(1)["test_output_of_a_failure"]
    assert case.stderr.splitlines()[-1] == "stderr of rank 1"  # torch may print warnings before it
    assert "stderr of rank" not in case.stdout


def test_big_output_loses_its_middle(zoo):
    stdout = zoo.cases(0)["test_big_output"].stdout
    assert stdout.startswith("first\n")
    assert stdout.endswith("\nlast\n")
    assert "characters cut" in stdout
    assert len(stdout) < 70_000


@pytest.mark.parametrize("test", ["test_big_message", "test_big_skip"])
def test_a_big_message_loses_its_middle(zoo, test):
    assert len(zoo.cases(0)[test].message) < 1_100
    assert len(zoo.cases(0)[test].text) < 70_000


def test_characters_that_xml_forbids_are_escaped(zoo):
    case = zoo.cases(0)["test_strange_output"]
    assert case.message == "AssertionError: \x00\ud800\uffff"
    assert case.stdout.startswith("\x00\x1b[31m")
    assert "]]>&<" in case.stdout


def test_all_ranks_draw_the_same_random_numbers(zoo):
    assert zoo.outcomes("test_random_numbers") == ("passed", "passed")


def test_the_seed_of_a_test_is_recorded(zoo):
    assert len({record.seed for record in zoo.all(TestStarted)}) > 40


@pytest.mark.parametrize("name", ["a::b", "[x]", "\\xfc", "a b", "x/y", ""])
def test_odd_parameter_ids_are_kept(zoo, name):
    case = zoo.cases(1)[f"test_ids[{name}]"]
    assert (case.outcome, case.classname) == ("passed", "suite.test_zoo")


@pytest.mark.parametrize(("test", "classname"), [("test_in_class", "TestClass"), ("test_in_case", "Case")])
def test_classes_and_conftest_fixtures_work(zoo, test, classname):
    case = zoo.cases(0)[test]
    assert (case.outcome, case.classname) == ("passed", f"suite.test_zoo.{classname}")


@pytest.mark.parametrize(
    "test",
    [
        "test_after_the_process_group_was_destroyed",
        "test_has_no_sandcastle",
        "test_signals_have_their_usual_effect",
        "test_after_all_that",
    ],
)
def test_a_rank_starts_from_a_clean_state(zoo, test):
    assert zoo.outcomes(test) == ("passed", "passed"), zoo.cases(0)[test].message


def test_a_test_that_closes_all_descriptors_ends_only_its_rank(zoo):
    assert zoo.outcomes("test_closes_stdout_and_dies") == ("crashed", "crashed")
    assert len(zoo.all(Finished)) == 1


def test_a_bad_outcome_costs_its_gang(zoo):
    nodeids = zoo.all(Collected)[0].tests
    bad = {event.nodeid for event in zoo.ends if event.outcome in ("failed", "crashed", "errored")}
    first_of_gang = {started.nodeid for started in first_tests_of_gangs(zoo)}
    after_bad = {after for test, after in itertools.pairwise(nodeids) if test in bad}
    assert after_bad <= first_of_gang


def first_tests_of_gangs(agent):
    records = agent.all(GangStarted | TestStarted)
    return [after for before, after in itertools.pairwise(records) if isinstance(before, GangStarted)]


def test_every_collected_test_has_an_outcome_on_every_rank(zoo):
    nodeids = zoo.all(Collected)[0].tests
    for rank in (0, 1):
        assert [case.properties["nodeid"] for case in zoo.cases(rank).values()] == list(nodeids)
        assert all(case.outcome != "missing" for case in zoo.cases(rank).values())


def test_the_agent_reports_its_end(zoo):
    assert zoo.all(Finished)[0].status == 0


@pytest.mark.thorough
def test_a_test_without_a_reported_call_is_an_error(run_agent):
    conftest = """
        import pytest

        def pytest_runtest_protocol(item):
            for when in ("setup", "teardown"):
                call = pytest.CallInfo.from_call(lambda: None, when=when)
                item.ihook.pytest_runtest_logreport(report=pytest.TestReport.from_item_and_call(item, call))
            return True
    """
    agent = run_agent({"conftest.py": conftest, "test_one.py": "def test_one():\n    raise ValueError\n"})
    for rank in (0, 1):
        [case] = agent.cases(rank).values()
        assert case.outcome == "errored"
        assert case.message.startswith("this test was never called")

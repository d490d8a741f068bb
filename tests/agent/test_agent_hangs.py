"""Ranks that hang: a suite that runs once with short limits."""

import pytest

from allranks.protocol.records import FailureCourse, Finished, Went

SUITE = """
    import ctypes, os, signal, threading, time
    import pytest

    def test_hangs_on_rank_1(rank):
        if rank == 1:
            time.sleep(600)  # hangs alone

    def test_hangs_in_two_odd_ways(rank):
        if rank == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(600)  # ignores TERM

    def test_hangs_beside_a_thread(rank):
        def wait_elsewhere():
            time.sleep(600)
        threading.Thread(target=wait_elsewhere, daemon=True).start()
        if rank == 0:
            threading.Event().wait()  # hangs in the main thread
        while True:
            ctypes.CDLL(None).sleep(600)  # hangs in C

    @pytest.fixture
    def hangs():
        time.sleep(600)  # hangs in a fixture

    def test_hangs_in_setup(hangs):
        pass

    def test_passes_after_hangs():
        pass

    @pytest.fixture(scope="module")
    def hangs_later():
        yield
        time.sleep(600)  # hangs in teardown

    def test_skips_in_its_call(hangs_later):
        pytest.skip("after its fixture was made")

    def test_ends_the_file(hangs_later):
        pass
"""


@pytest.fixture(scope="module")
def hangs(run_once):
    limits = {"test": 0.6, "peer_grace": 0.2, "process_group": 1.0}
    # One gang, so that each test after the first shows that its gang is a new one.
    return run_once("hangs", {"test_hangs.py": SUITE}, limits=limits, isolation="job")


def assert_was_in(case, mark, function):
    line = next(number for number, line in enumerate(SUITE.splitlines(), start=1) if mark in line)
    assert case.message.endswith(f"test_hangs.py:{line} in {function}")


def test_a_rank_that_hangs_alone_is_timed_out_with_its_line(hangs):
    assert hangs.outcomes("test_hangs_on_rank_1") == ("passed", "timed_out")
    case = hangs.cases(1)["test_hangs_on_rank_1"]
    assert case.message.startswith("not finished after 0.6 s (limits.test), in the call of this test; it was in ")
    assert_was_in(case, "hangs alone", "test_hangs_on_rank_1")


def test_the_text_of_a_timeout_has_the_stacks_with_source_lines(hangs):
    lines = hangs.cases(1)["test_hangs_on_rank_1"].text.splitlines(keepends=True)
    assert "in test_hangs_on_rank_1" in "".join(lines)
    assert "    serve(socket.socket(fileno=0))\n" in lines
    written = "".join(line for line in lines if not line.startswith("    "))
    assert written in (hangs.results / "rank-1.stacks.txt").read_text()


def test_ranks_that_hang_together_are_all_timed_out(hangs):
    assert hangs.outcomes("test_hangs_in_two_odd_ways") == ("timed_out", "timed_out")


def test_a_stopped_rank_has_no_line(hangs):
    case = hangs.cases(0)["test_hangs_in_two_odd_ways"]
    assert case.message == "not finished after 0.6 s (limits.test), in the call of this test; it is stopped (SIGSTOP)"


def test_a_rank_that_ignores_term_is_killed(hangs):
    assert_was_in(hangs.cases(1)["test_hangs_in_two_odd_ways"], "ignores TERM", "test_hangs_in_two_odd_ways")
    hangs.assert_nothing_left()


@pytest.mark.parametrize(("rank", "mark"), [(0, "hangs in the main thread"), (1, "hangs in C")])
def test_the_line_is_that_of_user_code_in_the_main_thread(hangs, rank, mark):
    assert_was_in(hangs.cases(rank)["test_hangs_beside_a_thread"], mark, "test_hangs_beside_a_thread")


def test_a_hang_in_a_fixture_is_reported(hangs):
    assert hangs.outcomes("test_hangs_in_setup") == ("timed_out", "timed_out")
    assert_was_in(hangs.cases(0)["test_hangs_in_setup"], "hangs in a fixture", "hangs")


def test_the_next_test_passes_in_a_new_gang(hangs):
    assert hangs.outcomes("test_passes_after_hangs") == ("passed", "passed")


def test_a_teardown_between_tests_has_the_limit_of_the_process_group(hangs):
    case = hangs.cases(1)["test_skips_in_its_call"]
    assert case.outcome == "timed_out"
    assert "1 s while tearing down fixtures and the process group (limits.process_group)" in case.message
    assert_was_in(case, "hangs in teardown", "hangs_later")


def test_a_teardown_of_the_last_test_has_the_limit_of_the_test(hangs):
    case = hangs.cases(1)["test_ends_the_file"]
    assert case.outcome == "timed_out"
    assert "not finished after 0.6 s (limits.test), in the tear-down of this test" in case.message


def test_the_time_is_bounded(hangs):
    [finished] = hangs.all(Finished)
    [go] = hangs.all(Went)
    hanging = 6
    assert finished.at - go.at < 20 > hanging * (0.6 + 0.5 + 1)


def test_a_failure_records_which_ranks_entered_which_collective(run_agent):
    suite = """
        import torch
        from torch import distributed as dist

        def test_passes(rank):
            dist.barrier()

        def test_rank_1_fails(rank):
            print(f"rank {rank} speaks")
            dist.all_reduce(torch.ones(2))
            assert rank != 1

        def test_rank_1_stays_away(rank):
            dist.all_reduce(torch.ones(2))
            assert rank != 1
            dist.barrier()
    """
    agent = run_agent({"test_course.py": suite}, isolation="job")
    courses = {course.nodeid.partition("::")[2]: course for course in agent.all(FailureCourse)}
    assert courses.keys() == {"test_rank_1_fails", "test_rank_1_stays_away"}
    fails, stays_away = courses.values()
    assert (fails.passed, fails.stdout) == (0, "rank 0 speaks\n")
    # The barrier of the test before, on the same ranks, is not this one's.
    assert [(call.kind, call.number, call.ranks) for call in fails.collectives] == [("all_reduce", 2, (0, 1))]
    assert [(call.kind, call.ranks) for call in stays_away.collectives] == [("all_reduce", (0, 1)), ("barrier", (0,))]
    assert all(0 <= seconds < 60 for collective in stays_away.collectives for seconds in collective.seconds)

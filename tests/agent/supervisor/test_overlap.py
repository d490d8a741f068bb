"""Multi-process tests that run at the same time."""

import os
import signal
from pathlib import Path

import pytest

from allranks.protocol.records import (
    AgentFailed,
    CollectionFailed,
    Interrupted,
    JobTimedOut,
    Notice,
    NotRun,
    Passed,
    RankEnded,
    TestStarted,
)

BASE = """
    import ctypes, os, sys, time, unittest
    from pathlib import Path
    import pytest
    from allranks.testing import MultiProcContinuousTest, MultiProcessTestCase

    def write_word(word):
        with open(os.environ["WORDS"], "w") as words:
            words.write(f"{word}\\n")

    class Case(MultiProcessTestCase):
        @property
        def world_size(self):
            return 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

    def meet(name, peer):
        # Both only pass if they run at the same time.
        Path(f"{name}-{os.environ['RANK']}").touch()
        deadline = time.monotonic() + 20
        while not Path(f"{peer}-{os.environ['RANK']}").exists():
            assert time.monotonic() < deadline, f"{peer} does not run"
            time.sleep(0.01)
"""

SUITE = {
    "test_zoo.py": BASE
    + """
    class TestZoo(Case):
        def test_left(self):
            meet("left", "right")

        def test_right(self):
            meet("right", "left")

        def test_fails(self):
            print(f"rank {self.rank} speaks")
            assert self.rank == 0, "rank 1 fails"
            time.sleep(1000)

        def test_skips(self):
            sys.exit(77)

        def test_segfaults(self):
            if self.rank == 1:
                ctypes.string_at(0)

        @pytest.mark.time_limit(2)
        def test_hangs(self):
            if self.rank == 1:
                time.sleep(1000)

    class TestKept(MultiProcContinuousTest):
        world_size = 2

        @classmethod
        def backend_str(cls):
            return "gloo"

        def test_a(self):
            type(self).left = os.getpid()

        def test_b(self):
            assert self.left == os.getpid()

    def test_of_the_cells_ranks():
        time.sleep(0.01)

    class TestAfter(Case):
        def test_a_after(self):
            pass

        def test_b_after(self):
            pass
""",
}

OUTCOMES = {
    "test_left": ("passed", "passed"),
    "test_right": ("passed", "passed"),
    "test_fails": ("aborted", "failed"),
    "test_skips": ("skipped", "skipped"),
    "test_segfaults": ("passed", "crashed"),
    "test_hangs": ("passed", "timed_out"),
    "test_a": ("passed", "passed"),
    "test_b": ("passed", "passed"),
    "test_of_the_cells_ranks": ("passed", "passed"),
    "test_a_after": ("passed", "passed"),
}


@pytest.fixture(scope="module")
def results(run_once):
    return run_once("results", SUITE, overlap=2)


@pytest.mark.parametrize("test", OUTCOMES)
def test_outcomes_are_those_of_tests_that_run_alone(results, test):
    assert results.outcomes(test) == OUTCOMES[test]


def test_each_rank_has_an_outcome_in_the_journal(results):
    arrived = [(event.nodeid.rpartition("::")[2], event.rank) for event in results.ends]
    assert sorted(arrived) == sorted((test, rank) for test in [*OUTCOMES, "test_b_after"] for rank in (0, 1))


def test_each_test_has_the_output_of_its_own_ranks(results):
    assert results.cases(1)["test_fails"].stdout == "rank 1 speaks\n"
    assert results.cases(1)["test_hangs"].stdout == ""


def test_each_test_has_the_stacks_of_its_own_ranks(results):
    assert " in test_hangs" in results.cases(1)["test_hangs"].text


def test_a_failure_stops_only_its_own_peers(results):
    assert results.cases(0)["test_fails"].message.startswith("aborted by rank 1")


GROUPED = {
    "test_ports.py": BASE
    + """
    class Exclusive(Case):
        def setUp(self):
            self.held = Path("held")
            self.held.touch(exist_ok=False)  # as a port can be bound once
            super().setUp()

        def tearDown(self):
            super().tearDown()
            self.held.unlink()

    class TestOne(Exclusive):
        def test_a(self):
            meet("grouped", "beside")

        def test_b(self): ...

    @pytest.mark.test_group("port-29500")
    class TestTwo(Exclusive):
        def test_c(self): ...

    class TestBeside(Case):
        def test_d(self):
            meet("beside", "grouped")

    @pytest.mark.test_group
    class TestWrong(Case):
        def test_e(self): ...
"""
}


def test_tests_of_one_group_only_overlap_with_other_tests(run_agent):
    files = {"test_ports.py": GROUPED["test_ports.py"].partition("    @pytest.mark.test_group\n")[0]}
    agent = run_agent(files, overlap=2, test_groups={"port-29500": ("test_ports.py::TestOne",)})
    assert {agent.outcomes(f"test_{name}") for name in "abcd"} == {("passed", "passed")}


def test_a_group_without_a_name_is_an_error(run_agent):
    agent = run_agent(GROUPED, overlap=2)
    assert "takes the name of one group" in agent.all(CollectionFailed)[0].text


IN_USE = {
    "test_ports.py": BASE
    + """
    class TestPort(Case):
        def test_binds(self):
            if self.rank == 0:
                raise OSError("[Errno 98] Address already in use")

        def test_beside(self): ...
"""
}


@pytest.mark.thorough
def test_a_port_in_use_names_the_concurrent_tests(run_agent):
    agent = run_agent(IN_USE, overlap=2, limits={"peer_grace": 0.3})
    [notice] = [event.text for event in agent.all(Notice) if "port" in event.text]
    assert "; suite/test_ports.py::TestPort::test_beside ran at the same time or just before. Put " in notice
    assert "test_groups" in notice


def test_tests_of_the_cells_ranks_run_after_all_that_overlap(results):
    begun = {event.nodeid.rpartition("::")[2]: event.at for event in results.all(TestStarted)}
    ended = {event.nodeid.rpartition("::")[2]: event.at for event in results.all(Passed | RankEnded)}
    last = "test_of_the_cells_ranks"
    assert max(at for test, at in ended.items() if test != last) <= begun[last]


BETWEEN = {
    "test_between.py": BASE
    + """
    class TestOne(Case):
        def test_one(self):
            meet("one", "two")

    def test_plain():
        pass

    class TestTwo(Case):
        def test_two(self):
            meet("two", "one")
"""
}


@pytest.mark.thorough
def test_launcher_tests_overlap_across_other_tests(run_agent):
    agent = run_agent(BETWEEN, overlap=2)
    assert {agent.outcomes(test) for test in ("test_one", "test_plain", "test_two")} == {("passed", "passed")}


MANY = {
    "test_many.py": BASE
    + """
    class TestMany(Case):
        def test_0(self):
            assert False

        def test_1(self):
            meet("one", "one")
"""
    + "".join(
        f"""
        def test_{number}(self):
            pass
"""
        for number in range(2, 9)
    )
}


@pytest.mark.thorough
def test_no_test_starts_after_a_failure_with_x(run_agent):
    agent = run_agent(MANY, overlap=2, pytest_args=("-x",))
    (not_run,) = agent.all(NotRun)
    begun = {event.nodeid for event in agent.ends}
    assert len(begun) < 9
    assert begun.isdisjoint(not_run.tests)
    assert len(begun) + len(not_run.tests) == 9


HANGING = {
    "test_hanging.py": BASE
    + """
    class TestHanging(Case):
        def test_a(self):
            write_word("hangs")
            time.sleep(1000)

        def test_b(self):
            write_word("hangs")
            time.sleep(1000)

        def test_c(self):
            write_word("never")
"""
}


@pytest.fixture
def hanging(start_agent):
    agent = start_agent(HANGING, overlap=2).go()
    for _ in range(4):
        assert agent.word() == "hangs"
    return agent


@pytest.mark.thorough
def test_a_stop_request_ends_all_workers(hanging):
    hanging.close_stdin()
    assert hanging.wait() == 130
    assert hanging.all(Interrupted)
    for test in ("test_a", "test_b"):
        assert hanging.outcomes(test) == ("aborted", "aborted")
    hanging.assert_nothing_left()


@pytest.mark.thorough
def test_sigterm_ends_all_workers(hanging):
    hanging.signal(signal.SIGTERM)
    assert hanging.wait() == 130
    for test in ("test_a", "test_b"):
        assert hanging.outcomes(test) == ("aborted", "aborted")
    hanging.assert_nothing_left()


@pytest.mark.thorough
def test_the_time_limit_of_the_job_ends_all_workers(run_agent):
    agent = run_agent(HANGING, overlap=2, limits={"job": 2.0})
    assert agent.all(JobTimedOut)
    for test in ("test_a", "test_b"):
        assert "timed_out" in agent.outcomes(test)
    agent.assert_nothing_left()


def test_a_killed_fork_server_ends_all_workers_and_leaves_no_process(hanging):
    launchers = {pid for gang in hanging.gangs() for pid in gang}
    [fork_server] = set(children_of(hanging.pid)) - launchers
    os.kill(fork_server, signal.SIGKILL)
    for launcher in launchers:
        os.kill(launcher, signal.SIGKILL)
    assert hanging.wait() == 1
    (failure,) = hanging.all(AgentFailed)
    assert failure.message == "The process that has imported the suite was killed by SIGKILL."
    hanging.assert_nothing_left()


def children_of(pid):
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and parent_of(entry) == pid]


def parent_of(process):
    try:
        stat = (process / "stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[1])


def test_a_killed_agent_leaves_no_process(hanging):
    hanging.signal(signal.SIGKILL)
    hanging.wait()
    hanging.assert_nothing_left()

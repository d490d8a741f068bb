"""The lifetime of gangs, and of their fixtures."""

import pytest
from long_lists import quick

from allranks.protocol.records import NotRun

TWO_FILES = {
    "test_one.py": """
        def test_a(): pass
        def test_b(): pass
    """,
    "test_two.py": """
        def test_c(): pass
        def test_d(): pass
    """,
}


@pytest.mark.parametrize(("isolation", "gangs"), quick(1, [("test", 4), ("file", 2), ("job", 1)]))
def test_isolation_decides_how_many_gangs_run_a_suite(run_agent, isolation, gangs):
    agent = run_agent(TWO_FILES, isolation=isolation)
    assert len(agent.gangs()) == gangs
    assert len({pid for gang in agent.gangs() for pid in gang}) == 2 * gangs


@pytest.mark.thorough
def test_a_gang_leaks_no_descriptor_and_no_child(run_agent):
    suite = """
        import os
        import pytest

        @pytest.mark.parametrize("number", range(20))
        def test_counts(number):
            agent = os.getppid()
            children = [pid for pid in os.listdir("/proc") if pid.isdigit() and parent(pid) == agent]
            with open(os.environ["WORDS"], "w") as words:
                print(len(os.listdir(f"/proc/{agent}/fd")), len(children), file=words)

        def parent(pid):
            try:
                with open(f"/proc/{pid}/stat") as stat:
                    return int(stat.read().rpartition(")")[2].split()[1])
            except OSError:
                return None
    """
    agent = run_agent({"test_counts.py": suite}, isolation="test", world_size=1)
    words = agent.words()
    assert len(words) == len(agent.gangs()) == 20
    assert len(set(words)) == 1
    assert words[0].endswith(" 2")  # the fork server and this rank


@pytest.mark.thorough
def test_fixtures_with_wider_scopes_are_set_up_once_per_rank_and_gang(run_agent):
    conftest = """
        import os
        import pytest

        def say(*words):
            with open(os.environ["WORDS"], "w") as fifo:
                print(*words, os.environ["RANK"], file=fifo)

        @pytest.fixture(scope="session")
        def whole():
            say("session up")
            yield
            say("session down")

        @pytest.fixture(scope="module", autouse=True)
        def module(whole):
            say("module up")
            yield
            say("module down")

        def pytest_sessionfinish():
            say("finish")
    """
    agent = run_agent({"conftest.py": conftest, **TWO_FILES}, isolation="job", environment={"RANK": "agent"})
    words = agent.words()
    lives = ["session up", "module up", "module down", "module up", "module down", "session down"]
    for rank in (0, 1):
        assert [word[:-2] for word in words if word.endswith(f" {rank}")] == lives
    assert [word for word in words if word.endswith("agent")] == ["finish agent"]


@pytest.mark.thorough
def test_a_marker_requests_a_gang_without_a_process_group(run_agent):
    suite = """
        import pytest
        import torch.distributed as dist

        def test_has_one():
            assert dist.is_initialized()

        @pytest.mark.no_process_group
        def test_has_none():
            assert not dist.is_initialized()

        @pytest.mark.no_process_group
        def test_makes_one(tmp_path):
            dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)

        @pytest.mark.no_process_group
        def test_has_none_again():
            assert not dist.is_initialized()
    """
    agent = run_agent({"test_marker.py": suite})
    assert {case.outcome for case in agent.cases(0).values()} == {"passed"}, agent.cases(0)
    assert len(agent.gangs()) == 3


MIXED = {
    "test_mixed.py": """
        def test_1(): pass
        def test_2(): assert False
        def test_3(): pass
        def test_4(): assert False
        def test_5(): pass
    """
}


@pytest.mark.parametrize(("argument", "ran"), quick(1, [("-x", 2), ("--maxfail=2", 4)]))
def test_the_job_stops_like_pytest_and_reports_tests_that_did_not_run(run_agent, argument, ran):
    agent = run_agent(MIXED, pytest_args=(argument,), world_size=1)
    [stopped] = agent.all(NotRun)
    assert list(stopped.tests) == [f"suite/test_mixed.py::test_{number}" for number in range(ran + 1, 6)]
    assert stopped.reason.startswith("-x or --maxfail")
    assert len(agent.cases(0)) == ran


@pytest.mark.parametrize(("allowed", "left"), quick(1, [((), ["suite/test_skip.py::test_2"]), (("*::test_1",), [])]))
def test_ranks_that_disagree_on_a_skip_fail_the_test_unless_allowed(run_agent, allowed, left):
    suite = """
        import pytest

        def test_1(rank):
            if rank:
                pytest.skip("not here")

        def test_2(): pass
    """
    agent = run_agent({"test_skip.py": suite}, pytest_args=("-x",), mixed_skip=allowed)
    assert [nodeid for event in agent.all(NotRun) for nodeid in event.tests] == left


@pytest.mark.thorough
def test_dash_x_at_the_last_test_reports_no_test_as_not_run(run_agent):
    agent = run_agent({"test_last.py": "def test_fails(): assert False"}, pytest_args=("-x",), world_size=1)
    assert not agent.all(NotRun)


def test_a_process_group_that_cannot_be_destroyed_is_an_error_of_the_last_test(run_agent):
    suite = """
        import torch.distributed as dist

        def test_before(): pass

        def test_breaks_the_end(rank):
            if rank == 1:
                def fail(*_):
                    raise RuntimeError("it is stuck")
                dist.destroy_process_group = fail
    """
    agent = run_agent({"test_end.py": suite})
    assert agent.outcomes("test_before") == ("passed", "passed")
    assert agent.outcomes("test_breaks_the_end") == ("passed", "errored")
    case = agent.cases(1)["test_breaks_the_end"]
    assert case.message == "the process group could not be destroyed: it is stuck"
    assert "RuntimeError: it is stuck" in case.text


def test_a_failing_process_group_is_an_error_of_the_next_test(run_agent):
    conftest = """
        import os
        import pytest
        from torch import distributed

        ours = distributed.init_process_group

        def fail_on_rank_1(*args, rank, **kwargs):
            if rank == 1:
                raise OSError("no such network")
            ours(*args, rank=rank, **kwargs)

        distributed.init_process_group = fail_on_rank_1
    """
    suite = "def test_first(): pass"
    agent = run_agent({"conftest.py": conftest, "test_first.py": suite}, limits={"process_group": 20.0})
    assert agent.outcomes("test_first") == ("aborted", "errored")
    assert agent.cases(1)["test_first"].message == "the process group could not be created: no such network"
    assert agent.cases(0)["test_first"].message.startswith("aborted by rank 1")


@pytest.mark.thorough
def test_plugins_work_inside_ranks(run_agent):
    suite = """
        import time

        def test_prints():
            print("as it is")

        def test_is_slow():
            time.sleep(600)
    """
    agent = run_agent(
        {"test_plugins.py": suite}, pytest_args=("-s", "-p", "pytest_timeout", "--timeout=0.3"), world_size=1
    )
    assert agent.cases(0)["test_prints"].outcome == "passed"
    assert "as it is" in (agent.results / "rank-0.log").read_text()
    slow = agent.cases(0)["test_is_slow"]
    assert (slow.outcome, "Timeout" in slow.message) == ("failed", True)


BARRIER_AT_THE_END = """
import os, time
import pytest
import torch.distributed as dist

@pytest.fixture(scope="session")
def meets_again():
    yield
    dist.barrier()

def test_crashes_late(rank, meets_again):
    if rank == 1:
        while not os.path.exists("passed"):
            time.sleep(0.01)
        os._exit(7)

def test_after(): pass
"""

TELLS_WHEN_RANK_0_HAS_PASSED = """
import os

def pytest_runtest_logreport(report):
    if report.when == "teardown" and os.environ.get("RANK") == "0":
        open("passed", "w").close()
"""


def test_a_failed_teardown_after_a_crash_of_a_peer_does_not_lead(run_agent):
    files = {"test_a.py": BARRIER_AT_THE_END, "conftest.py": TELLS_WHEN_RANK_0_HAS_PASSED}
    agent = run_agent(files, isolation="job", limits={"peer_grace": 5.0})
    assert agent.outcomes("test_crashes_late") == ("passed", "crashed")
    assert agent.outcomes("test_after") == ("passed", "passed")


SLOW_FINALIZER = """
import time
import pytest
import torch.distributed as dist

@pytest.fixture
def slow():
    yield
    time.sleep(600)

def test_fails_on_one(rank, slow):
    assert rank == 0
    dist.barrier()
"""


@pytest.mark.thorough
def test_a_failure_is_known_before_its_own_teardown_has_ended(run_agent):
    agent = run_agent({"test_a.py": SLOW_FINALIZER}, limits={"peer_grace": 0.5, "test": 60.0})
    assert agent.outcomes("test_fails_on_one") == ("aborted", "failed")
    assert [event.rank for event in agent.arrived("test_fails_on_one")] == [1, 0]
    assert agent.cases(0)["test_fails_on_one"].message.startswith("aborted by rank 1")


SUBTESTS = """
import pytest

def test_parts(subtests):
    for part in range(3):
        with subtests.test(part=part):
            if part == 1:
                pytest.skip("not this part")

def test_bad_part(subtests):
    with subtests.test("bad"):
        assert False
"""


def test_a_skipped_subtest_does_not_skip_its_test_and_a_bad_one_fails_it(run_agent):
    agent = run_agent({"test_a.py": SUBTESTS})
    assert agent.outcomes("test_parts") == ("passed", "passed")
    assert agent.outcomes("test_bad_part") == ("failed", "failed")


@pytest.mark.thorough
def test_a_group_of_a_wider_fixture_keeps_the_gang(run_agent):
    suite = """
        import pytest
        import torch.distributed as dist

        pytestmark = pytest.mark.no_process_group

        @pytest.fixture(scope="module")
        def group(tmp_path_factory):
            store = tmp_path_factory.mktemp("group") / "store"
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
            yield
            dist.destroy_process_group()

        def test_one(group): ...

        def test_two(group):
            dist.barrier()

        def test_makes_another(group):
            dist.destroy_process_group()

        def test_in_a_new_gang(group):
            dist.barrier()
    """
    agent = run_agent({"test_fixture.py": suite}, isolation="job")
    assert {case.outcome for case in list(agent.cases(0).values())[:2]} == {"passed"}
    assert len(agent.gangs()) == 2


def test_a_rank_does_not_collect_garbage_of_its_parent(run_agent):
    suite = """
        import gc

        def test_one():
            assert gc.isenabled()
            assert gc.get_freeze_count() > 10 * len(gc.get_objects())
    """
    agent = run_agent({"test_one.py": suite})
    assert [case.outcome for case in agent.cases(0).values()] == ["passed"]

"""Agents that repeat their tests: what becomes of each repetition."""

import pytest

from allranks.plugins.stress.agent.settings import seed_of_repetition
from allranks.plugins.stress.agent.skew import LEVELS, late_rank
from allranks.protocol.config import seed_of_test
from allranks.protocol.records import Finished, Interrupted, NotRun, Passed, RankEnded, Repeated, TestStarted

FILES = {
    "test_a.py": """
        import os

        import pytest
        import torch
        import torch.distributed as dist

        RUNS = []
        MODULES = []


        @pytest.fixture(scope="module")
        def module():
            MODULES.append(1)


        @pytest.fixture
        def own():
            RUNS.append(1)
            return list(RUNS)


        class TestA:
            def test_fixtures(self, module, own, tmp_path):
                assert len(MODULES) == 1, "made once a gang"
                assert len(own) == len(RUNS), "made for each repetition"
                assert not hasattr(self, "mark")
                self.mark = True
                dist.barrier()

        def test_fifth(rank):
            RUNS.append(1)
            dist.barrier()
            assert len(RUNS) % 5 or rank == 0, "the fifth"

        def test_dies(rank):
            RUNS.append(1)
            if len(RUNS) == 3 and rank == 1:
                os._exit(7)
            dist.barrier()

        def test_skips():
            pytest.skip("not here")

        def test_speaks():
            with open(os.environ["WORDS"], "w") as words:
                words.write("began\\n")
            dist.barrier()
    """
}


def stress(**settings):
    """The plug-ins of a job that repeats its tests."""
    return {"stress": settings}


def repeated(run_agent, name, *, count=None, seconds=None, **changes):
    plugins = stress(count=count, seconds=seconds)
    return run_agent(FILES, plugins=plugins, pytest_args=("-k", name, *changes.pop("args", ())), **changes)


def tally(agent):
    return agent.all(Repeated)[-1].tally


def names(agent):
    return [record.nodeid.partition("::")[2] for record in agent.all(TestStarted)]


def test_repetitions_share_a_gang_and_leave_one_record(run_agent):
    agent = repeated(run_agent, "test_fixtures", count=20)
    assert (tally(agent).runs, tally(agent).bad) == (20, 0)
    assert 0 < tally(agent).median <= tally(agent).slowest
    assert len(agent.gangs()) == len(agent.all(Passed)) == 1
    assert names(agent) == ["TestA::test_fixtures"]


def test_a_bad_repetition_has_a_name_and_its_gang_is_replaced(run_agent):
    agent = repeated(run_agent, "test_fifth", count=12)
    assert (tally(agent).runs, tally(agent).bad, tally(agent).first_bad) == (12, 2, 5)
    own = seed_of_test(agent.config.seed, "suite/test_a.py::test_fifth")
    fifth, tenth = (f"test_fifth (repetition {n}, seed {seed_of_repetition(own, n)})" for n in (5, 10))
    assert names(agent) == ["test_fifth", fifth, tenth]
    assert len(agent.gangs()) == 3
    assert agent.outcomes(tenth) == ("passed", "failed")
    assert agent.outcomes("test_fifth") == ("failed", "failed")
    [lead] = [record for record in agent.arrived("test_fifth") if not record.consequence]
    assert (lead.rank, lead.message[:32]) == (1, "2 of 12 repetitions failed: 16.7")
    assert "the fifth" in lead.text


def test_a_rank_that_dies_costs_the_repetition_that_it_died_in(run_agent):
    agent = repeated(run_agent, "test_dies", count=4)
    assert (tally(agent).runs, tally(agent).bad) == (4, 1)
    [name] = [name for name in names(agent) if "(repetition 3, " in name]
    assert agent.outcomes(name)[1] == "crashed"


@pytest.mark.thorough
def test_fresh_ranks_where_isolation_asks_for_them(run_agent):
    agent = repeated(run_agent, "test_dies", count=4, isolation="test")
    assert (tally(agent).runs, tally(agent).bad, len(agent.gangs())) == (4, 0, 4)


@pytest.mark.thorough
def test_a_test_that_skips_is_not_repeated(run_agent):
    agent = repeated(run_agent, "test_skips or test_fixtures", count=3)
    runs = {record.nodeid.rpartition("::")[2]: record.tally.runs for record in agent.all(Repeated)}
    assert runs == {"test_skips": 1, "test_fixtures": 3}
    assert agent.outcomes("test_skips") == ("skipped", "skipped")


def test_several_gangs_at_a_time_share_the_count(run_agent):
    agent = repeated(run_agent, "test_fixtures", count=20, overlap=2)
    assert (tally(agent).runs, tally(agent).bad) == (20, 0)


def test_the_first_failure_ends_it(run_agent):
    agent = repeated(run_agent, "test_fifth or test_fixtures", count=100, args=("-x",))
    runs = {record.nodeid.rpartition("::")[2]: record.tally for record in agent.all(Repeated)}
    assert runs["test_fifth"].bad == 1
    assert runs["test_fixtures"].runs <= 6


def test_time_ends_it_and_what_never_ran_is_said(run_agent):
    agent = repeated(run_agent, "test_fifth or test_fixtures", seconds=1e-9, isolation="test")
    assert tally(agent).runs == 1
    assert [len(record.tests) for record in agent.all(NotRun)] == [1]


@pytest.mark.thorough
def test_a_run_that_is_ended_tells_what_was_done(start_agent):
    agent = start_agent(FILES, plugins=stress(count=10**6), pytest_args=("-k", "test_speaks"), world_size=1).go()
    for _ in range(3):
        agent.word()
    agent.close_stdin()
    assert agent.wait() == 130
    assert (tally(agent).runs >= 2, tally(agent).bad) == (True, 0)
    assert agent.outcomes("test_speaks") == ("passed",)
    assert agent.all(Interrupted)
    assert agent.all(Finished)
    assert not agent.all(RankEnded)


SKEWED = {
    "test_s.py": """
        import torch
        import torch.distributed as dist

        def test_sum():
            dist.all_reduce(torch.ones(2))
    """
}


def test_ranks_are_late_as_the_seed_has_it_and_their_output_says_where(run_agent):
    agent = run_agent(SKEWED, plugins=stress(count=12, skew="heavy"))
    assert (tally(agent).runs, tally(agent).bad, tally(agent).how) == (12, 0, "--skew heavy")
    own = seed_of_test(agent.config.seed, "suite/test_s.py::test_sum")
    seeds = [seed_of_repetition(own, number) for number in range(1, 13)]
    found = {"before the test (call 0 at test_s.py:5)": 0, "allreduce (call 1 at test_s.py:6)": 0}
    for rank in range(2):
        late = [each for seed in seeds if (each := late_rank(LEVELS["heavy"], seed, rank))]
        report = (agent.results / f"rank-{rank}.log").read_text()
        for call, words in enumerate(found):
            found[words] += report.count(words)
            assert report.count(words) == sum(max(item.delay(call)[: call + 1]) >= 0.001 for item in late)
    assert all(found.values())


THREADS = {
    "test_s.py": """
        import threading
        import torch
        import torch.distributed as dist

        def test_sends(rank):
            if rank == 0:
                sender = threading.Thread(target=dist.send, args=(torch.ones(1), 1))
                sender.start()
                sender.join()
            else:
                dist.recv(torch.zeros(1), 0)
    """
}


def test_a_late_thread_that_runs_torch_alone_is_named_by_the_line_that_started_it(run_agent):
    agent = run_agent(THREADS, plugins=stress(count=1, skew="0:before:1:5ms"))
    assert (
        "--skew: 5 ms before send (call 1 in a thread from test_s.py:9)\n" in (agent.results / "rank-0.log").read_text()
    )


@pytest.mark.thorough
def test_ranks_of_other_nodes_are_disturbed_from_outside(run_nodes):
    job = run_nodes(
        """
import time
import torch.distributed as dist

def test_stops(rank):
    longest, last, end = 0, time.monotonic(), time.monotonic() + 20
    while rank == 3 and longest < 0.5 and time.monotonic() < end:
        time.sleep(0.005)
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
    dist.barrier()
    assert rank != 3 or longest >= 0.5
""",
        plugins=stress(count=1, skew="3:stopped:300:1500ms"),
    )
    report = job.all(Repeated)[-1]
    assert (report.tally.runs, report.tally.bad) == (1, 0)

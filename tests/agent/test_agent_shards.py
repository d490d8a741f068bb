"""Agents that run shards of a suite: together they run each test once."""

import json

import pytest
from agent_run import AgentRun

from allranks.protocol.config import JobShard
from allranks.protocol.records import (
    AgentFailed,
    Collected,
    CollectionFailed,
    FailureKind,
    Finished,
    Shared,
    TestStarted,
)

FILES = {
    "test_a.py": "def test_1(): pass\ndef test_2(): pass\n",
    "test_b.py": "def test_1(): pass\ndef test_2(): pass\ndef test_3(): pass\n",
    "test_c.py": "import pytest\npytest.skip('not here', allow_module_level=True)\n",
}
A1, A2 = "suite/test_a.py::test_1", "suite/test_a.py::test_2"
B1, B2, B3 = (f"suite/test_b.py::test_{number}" for number in (1, 2, 3))


@pytest.fixture
def run_share(launch_fork, tmp_path_factory):
    """Run the agent of one shard to its end."""

    def run(files, number, count, **changes):
        share = JobShard(number=number, count=count)
        folder = tmp_path_factory.mktemp("share")
        agent = AgentRun(folder, files, launch_fork, share=share, **{"world_size": 1, **changes}).go()
        assert agent.wait() == 0, agent.log
        agent.close()
        return agent

    return run


@pytest.fixture
def run_shares(run_share):
    """Run the agents of all shards."""

    def run(files, count, **changes):
        return [run_share(files, number, count, **changes) for number in range(1, count + 1)]

    return run


def collected(agent):
    return list(agent.all(Collected)[0].tests)


def ran(agent):
    return list(dict.fromkeys(record.nodeid for record in agent.all(TestStarted)))


def test_each_test_runs_in_one_shard_in_order(run_shares):
    agents = run_shares(FILES, 2)
    assert [ran(agent) for agent in agents] == [[B1, B2, B3], [A1, A2]]
    assert [collected(agent) for agent in agents] == [["suite/test_c.py", B1, B2, B3], [A1, A2]]


@pytest.mark.thorough
def test_a_broken_module_is_an_error_of_every_share_and_its_neighbours_run(run_shares):
    agents = run_shares(
        {**FILES, "test_d.py": "1 / 0"}, 2, paths=("suite/test_d.py", "suite/test_b.py", "suite/test_a.py")
    )
    assert [ran(agent) for agent in agents] == [[B1, B2, B3], [A1, A2]]
    assert [[failed.nodeid for failed in agent.all(CollectionFailed)] for agent in agents] == [["suite/test_d.py"]] * 2


@pytest.mark.thorough
def test_all_agents_report_the_same_split(run_shares):
    [one], [two] = (agent.all(Shared) for agent in run_shares(FILES, 2))
    assert one.split == two.split
    assert (one.elsewhere, two.elsewhere) == (2, 4)


@pytest.mark.thorough
def test_tests_of_other_shards_do_not_count_as_deselected(run_shares):
    agents = run_shares(FILES, 2, isolation="test", pytest_args=("-k", "test_1"))
    assert [ran(agent) for agent in agents] == [[A1], [B1]]
    assert [agent.all(Collected)[0].deselected for agent in agents] == [3, 3]


@pytest.mark.thorough
def test_an_agent_with_an_empty_shard_passes(run_shares):
    agents = run_shares({"test_a.py": "def test_1(): pass\n"}, 2)
    assert [collected(agent) for agent in agents] == [[A1], []]
    assert not agents[1].all(CollectionFailed)
    assert agents[1].all(Shared)[0].elsewhere == 1
    assert agents[1].all(Finished)


@pytest.mark.thorough
def test_last_failed_tests_are_split_into_shards(run_share, tmp_path):
    source = "class TestA:\n" + "".join(f"    def test_{number}(self): pass\n" for number in range(6))
    failed = [f"suite/test_a.py::TestA::test_{number}" for number in (1, 4)]
    agents = []
    for number in (1, 2, 3):
        values = tmp_path / f"cache-{number}/v/cache"
        values.mkdir(parents=True)
        (values / "lastfailed").write_text(json.dumps(dict.fromkeys(failed, True)))
        arguments = ("--lf", "-o", f"cache_dir={tmp_path}/cache-{number}")
        agents.append(run_share({"test_a.py": source}, number, 3, isolation="test", pytest_args=arguments))
    assert [ran(agent) for agent in agents] == [[failed[0]], [failed[1]], []]


def test_an_agent_with_the_whole_suite_reports_no_shards(run_agent):
    agent = run_agent(FILES, world_size=1)
    assert not agent.all(Shared)
    assert set(collected(agent)) == {"suite/test_c.py", A1, A2, B1, B2, B3}


def test_stepwise_is_rejected_in_a_shard_with_a_remedy(start_agent):
    share = JobShard(number=1, count=2)
    agent = start_agent(FILES, world_size=1, share=share, pytest_args=("--sw",)).go()
    agent.wait()
    [failure] = agent.all(AgentFailed)
    assert failure.kind is FailureKind.USAGE
    assert "--stepwise cannot be used in a suite that is split into shards" in failure.message
    assert "`--lf`" in failure.message


def test_an_invalid_marker_fails_the_collection_of_a_shard(run_agent):
    source = "import pytest\n@pytest.mark.isolation('tests')\ndef test_1(): pass\n"
    agent = run_agent({"test_a.py": source}, world_size=1, share=JobShard(number=1, count=2))
    [failure] = agent.all(CollectionFailed)
    assert failure.nodeid == A1
    assert not agent.ends


@pytest.mark.thorough
def test_a_class_that_keeps_its_ranks_is_not_split(run_shares):
    body = "".join(f"    def test_{number}(self): pass\n" for number in range(3))
    source = (
        "from allranks.testing import MultiProcContinuousTest\n"
        f"class TestKept(MultiProcContinuousTest):\n    world_size = 1\n{body}"
        f"class TestToo(MultiProcContinuousTest):\n    world_size = 1\n{body}"
    )
    agents = run_shares({"test_a.py": source}, 2, isolation="test")
    classes = [{nodeid.split("::")[1] for nodeid in collected(agent)} for agent in agents]
    assert classes == [{"TestKept"}, {"TestToo"}]
    assert [len(collected(agent)) for agent in agents] == [3, 3]
    assert all(agent.ends for agent in agents)

"""A shard of a suite on two nodes: both agents run the same tests."""

import pytest
from nodes_run import NodesRun

from allranks.protocol.config import JobShard
from allranks.protocol.records import Collected, Finished, Shared

FILES = {
    "test_a.py": "def test_1(): pass\n",
    "test_b.py": "def test_1(): pass\ndef test_2(): pass\n",
}


@pytest.fixture
def run_shard(tmp_path, launch_fork):
    """Runs one of several shards on two nodes."""
    runs = []

    def run(number, count):
        share = JobShard(number=number, count=count)
        job = NodesRun(tmp_path, FILES, launch_fork, share=share, follower={}).go()
        runs.append(job)
        assert job.finish() == (0, 0), job.story + job.follower.story
        return job

    yield run
    for job in runs:
        job.close()


def test_both_nodes_run_only_the_tests_of_the_shard(run_shard):
    job = run_shard(2, 2)
    for agent in (job, job.follower):
        assert agent.all(Collected)[0].tests == ("suite/test_a.py::test_1",)
        assert [event.elsewhere for event in agent.all(Shared)] == [2]
    assert {event.rank for event in job.arrived("test_1")} == {0, 1, 2, 3}


def test_a_shard_without_tests_ends_on_both_nodes(run_shard):
    job = run_shard(3, 3)
    assert job.all(Collected)[0].tests == ()
    assert job.all(Finished)
    assert job.follower.all(Finished)

"""Jobs of several nodes on their way from the matrix file to an engine."""

from dataclasses import replace

import pytest

from allranks.engine.protocol import JobExit, NodeExit
from allranks.schedule.journal import job_error
from allranks.schedule.request import Attempt, Surroundings, job_spec

ATTEMPT = Attempt(run_id="r", number=1, seed=1)


@pytest.fixture
def wide(jobs):
    job = jobs["nccl-w2-g2-env"]
    return replace(job, cell=replace(job.cell, nodes=2))


def test_the_agents_are_told_how_many_nodes_there_are_and_no_secret_yet(matrix, wide):
    agent = job_spec(matrix, wide, Surroundings(), ATTEMPT).agent
    assert (agent.nodes, agent.post) == (2, None)
    assert agent.limits.assembly == matrix.limits.assembly


def test_the_engines_limit_leaves_time_for_agents_to_come_together(matrix, wide, jobs):
    alone = job_spec(matrix, jobs["nccl-w2-g2-env"], Surroundings(), ATTEMPT).resources.seconds
    together = job_spec(matrix, wide, Surroundings(), ATTEMPT).resources.seconds
    assert together >= alone + matrix.limits.assembly


@pytest.mark.parametrize("kind", ["nodes_failed", "node_lost"])
def test_what_befell_the_agents_together_is_the_jobs_error(kind):
    events = [{"event": kind, "message": "The agent of node 1 is gone."}, {"event": "agent_finished"}]
    error = job_error(events, JobExit(status=1))
    assert (error.kind, error.what, error.why) == ("agent", "The agent of node 1 is gone.", "")
    assert "agent-1.log" in error.remedy


def test_the_jobs_error_says_how_the_agent_of_each_node_ended():
    killed, fine = NodeExit(status=137, out_of_memory=True, output="Killed"), NodeExit(status=0)
    ending = JobExit(status=1, followers=(fine, killed))
    lost = job_error([{"event": "node_lost", "message": "The agent of node 2 is gone."}], ending)
    [why] = lost.why.splitlines()
    assert why.startswith("The agent of node 2 ended with status 137. The kernel killed it, or a part of it, for want")
    assert why.endswith("Killed")


def test_a_leader_that_died_is_named_by_its_node():
    error = job_error([], JobExit(status=137, output="Killed", followers=(NodeExit(status=130),)))
    assert error.what == "The agent of node 0 ended before its work was done, with status 137."
    assert error.why.splitlines() == ["Killed", "The agent of node 1 ended with status 130."]
    assert "agent-1.log" in error.remedy

"""Jobs of several nodes on their way from the matrix file to an engine."""

from dataclasses import replace

import pytest
from scripted_engine import facts_of

from allranks.engines.base import JobEnvironment, JobExit, NodeExit, resources
from allranks.protocol.config import TimeLimit
from allranks.protocol.records import Finished, NodeLost, NodesFailed
from allranks.runner.request import AttemptOptions, demand_of, job_spec

ATTEMPT = AttemptOptions(run_id="r", number=1, seed=1)


@pytest.fixture
def wide(jobs):
    job = jobs["nccl-w2-g2-env"]
    return replace(job, cell=replace(job.cell, nodes=2))


def test_the_agents_config_has_the_number_of_nodes(matrix, wide):
    agent = job_spec(matrix, wide, JobEnvironment(), ATTEMPT).agent
    assert (agent.nodes, agent.node_config) == (2, None)
    limits = replace(matrix.limits, assembly=7, silence=3)
    agent = job_spec(replace(matrix, limits=limits), wide, JobEnvironment(), ATTEMPT).agent
    assert (agent.limits.assembly, agent.limits.silence) == (7, 3)


def test_the_engines_limit_includes_the_rendezvous_of_the_agents(matrix, wide, jobs):
    alone = job_spec(matrix, jobs["nccl-w2-g2-env"], JobEnvironment(), ATTEMPT).resources.seconds
    together = job_spec(matrix, wide, JobEnvironment(), ATTEMPT).resources.seconds
    assert together >= alone + matrix.limits.assembly


def job_error(records, ending):
    return facts_of(records).error(ending, TimeLimit(value=1800, setting="limits.job"))


GONE = "The agent of node 1 is gone."


@pytest.mark.parametrize("apart", [NodesFailed(message=GONE), NodeLost(node=1, message=GONE)])
def test_a_failure_of_all_agents_is_the_jobs_error(apart):
    error = job_error([apart, Finished(status=1)], JobExit(status=1))
    assert (error.kind, error.what, error.why) == ("agent", "The agent of node 1 is gone.", "")
    assert "agent-1.log" in error.remedy


def test_the_jobs_error_has_the_end_of_each_nodes_agent():
    killed, fine = NodeExit(status=137, out_of_memory=True, output="Killed"), NodeExit(status=0)
    ending = JobExit(status=1, followers=(fine, killed))
    lost = job_error([NodeLost(node=2, message="The agent of node 2 is gone.")], ending)
    [why] = lost.why.splitlines()
    assert why.startswith("The agent of node 2 ended with status 137. The kernel's out-of-memory killer ended it")
    assert why.endswith("Killed")


def test_a_dead_lead_node_is_named():
    error = job_error([], JobExit(status=137, output="Killed", followers=(NodeExit(status=130),)))
    assert error.what == "The agent of node 0 ended before its work was done, with status 137."
    assert error.why.splitlines() == ["Killed", "The agent of node 1 ended with status 130."]
    assert "agent-1.log" in error.remedy


def test_each_node_has_the_resources_of_its_own_ranks(matrix, wide):
    matrix = replace(matrix, limits=replace(matrix.limits, memory_mib=None))
    uneven = replace(wide, cell=replace(wide.cell, world_size=3))
    spec = job_spec(matrix, uneven, JobEnvironment(), ATTEMPT)
    by_ranks = [resources(world_size=ranks, memory_mib=None, seconds=0) for ranks in (2, 1)]
    assert [spec.resources_on(node).memory_bytes for node in (0, 1)] == [each.memory_bytes for each in by_ranks]
    assert [spec.resources_on(node).shm_bytes for node in (0, 1)] == [each.shm_bytes for each in by_ranks]
    assert spec.resources.memory_bytes == sum(each.memory_bytes for each in by_ranks)
    assert demand_of(matrix, uneven, gpus=0).memory == spec.resources.memory_bytes >> 20


def test_a_single_node_has_the_resources_of_its_job(matrix, jobs):
    spec = job_spec(matrix, jobs["nccl-w2-g2-env"], JobEnvironment(), ATTEMPT)
    assert (spec.node_resources, spec.resources_on(0)) == ((), spec.resources)

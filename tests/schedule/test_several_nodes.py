"""Jobs of several nodes on their way from the matrix file to an engine."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from allranks.errors import ExitCode, UsageError
from allranks.matrix.expand import expand
from allranks.schedule import run as scheduled
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


def test_an_engine_that_runs_one_node_refuses_several_before_anything_runs(matrix, wide, tmp_path, monkeypatch):
    host = SimpleNamespace(engine=SimpleNamespace(name="docker", spans_nodes=False))
    monkeypatch.setattr(scheduled, "choose_host", lambda *_: host)
    monkeypatch.setattr(scheduled, "Runner", lambda *_: pytest.fail("it runs"))
    options = scheduled.RunOptions(
        run_id="r", results=tmp_path, engine="docker", seed=1, pytest_args=(), nothing_ran_allowed=False
    )
    with pytest.raises(UsageError, match="nccl-w2-g2-env-n2 has several nodes, and the docker engine") as error:
        scheduled.run(expand(matrix), [wide], options, print)
    assert error.value.exit_code is ExitCode.USAGE
    assert "--where nodes=1" in error.value.remedy


@pytest.mark.parametrize("kind", ["nodes_failed", "node_lost"])
def test_what_befell_the_agents_together_is_the_jobs_error(kind):
    events = [{"event": kind, "message": "The agent of node 1 is gone."}, {"event": "agent_finished"}]
    error = job_error(events, SimpleNamespace(timed_out=False))
    assert (error.kind, error.what) == ("agent", "The agent of node 1 is gone.")
    assert "agent-1.log" in error.remedy

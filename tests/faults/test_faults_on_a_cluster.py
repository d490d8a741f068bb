"""Every planted fault comes to what it declares on a SLURM cluster, too; `nox -s slurm` runs all of them."""

import subprocess
from collections.abc import Callable, Iterator

import pytest
import trial_cluster
from declaration import CLUSTER, Fault, read_all
from side_by_side import Outcome
from trial_cluster import inits_of_nodes, left_on_cluster, use_cluster

SAMPLE = ("daemon_outlives_it", "sigkill_to_the_agent", "two_nodes_rank_killed")
"""What each CI run has time for."""

FAULTS = [
    pytest.param(fault, id=fault.name, marks=() if fault.name in SAMPLE else pytest.mark.thorough)
    for fault in read_all().values()
    if CLUSTER in fault.engines
]

pytestmark = [pytest.mark.alone, pytest.mark.slurm]


@pytest.mark.parametrize("fault", FAULTS)
def test_on_a_cluster(fault: Fault, ended_on_a_cluster: Callable[[Fault], Outcome]):
    outcome = ended_on_a_cluster(fault)
    assert not outcome.wrong, outcome.details


@pytest.fixture
def on_a_node(slurm_cluster, monkeypatch) -> Iterator[list[str]]:
    """The beginning of a command that runs the rest of it on a node, outside of all jobs and without variables."""
    monkeypatch.setattr(trial_cluster, "DYING", 0.5)
    with use_cluster(slurm_cluster.folder):
        yield ["nsenter", f"--target={inits_of_nodes()[0]}", "--pid", "env", "-i"]


def test_a_process_that_no_job_is_the_parent_of_is_found_and_ended(on_a_node: list[str]):
    subprocess.run([*on_a_node, "sh", "-c", "sleep 3611 &"], check=True)
    [left] = left_on_cluster("any-run")
    assert "sleep 3611" in left
    assert left_on_cluster("any-run") == []


def test_a_process_with_the_name_of_a_run_is_that_runs(on_a_node: list[str]):
    with subprocess.Popen([*on_a_node, "JOB=allranks-run-7.a", "sleep", "3612"]):
        assert left_on_cluster("run-8") == []
        [left] = left_on_cluster("run-7")
        assert "sleep 3612" in left


def test_a_process_that_another_runs_job_is_losing_is_not_this_runs(on_a_node: list[str]):
    subprocess.run([*on_a_node, "JOB=allranks-fault-7.a", "sh", "-c", "sleep 3613 &"], check=True)
    assert left_on_cluster("fault-8") == []
    [left] = left_on_cluster("fault-7")
    assert "sleep 3613" in left


def test_a_job_of_a_run_that_is_still_queued_is_found_and_cancelled(slurm_cluster, monkeypatch):
    monkeypatch.setattr(trial_cluster, "LATE", 0.5)
    with use_cluster(slurm_cluster.folder):
        slurm_cluster.run("sbatch", "--hold", "--output=/dev/null", "--job-name=allranks-run-7.a", "--wrap=true")
        assert left_on_cluster("run-7") == ["job allranks-run-7.a in the queue"]
        slurm_cluster.wait_until("", "squeue", "--me", "--noheader")

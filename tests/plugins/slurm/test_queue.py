"""SLURM's queue: one poll for all jobs, and what its answers mean."""

import itertools
import os
import subprocess
import time
from dataclasses import replace

import pytest

from allranks.plugins.slurm import queue as slurm_queue
from allranks.plugins.slurm.allocation import JobStatus
from allranks.plugins.slurm.queue import PolledJob, QueuedJob, SlurmQueue, parse, without_slurm_variables


@pytest.fixture
def answers(monkeypatch):
    """squeue's answers, the last one again and again; None for none. Records the moments of its calls."""
    report, calls = [], []

    def run(command, **_):
        assert command[0] == "squeue"
        calls.append(time.monotonic())
        answer = report.pop(0) if len(report) > 1 else report[0]
        if answer is None:
            raise subprocess.TimeoutExpired(command, 1)
        return subprocess.CompletedProcess(command, 0, stdout=answer)

    monkeypatch.setattr(slurm_queue.subprocess, "run", run)
    monkeypatch.setattr(slurm_queue, "POLL", 0.2)
    return report, calls


def test_an_answer_is_read_whatever_a_name_holds():
    found = parse("7|PENDING|Resources||a\n8|RUNNING|None|n[1-2]|b|c\n")
    assert (found["a"].state, found["a"].reason) == ("PENDING", "Resources")
    assert (found["b|c"].nodes, found["b|c"].reason, found["b|c"].has_ended) == ("n[1-2]", "", False)


def test_of_two_jobs_of_one_name_the_one_that_has_not_ended_counts():
    lines = ["8|PENDING|Priority||a", "7|CANCELLED|None||a"]
    assert [parse("\n".join(order))["a"].number for order in (lines, lines[::-1])] == ["8", "8"]


def test_names_in_another_encoding_do_not_end_the_polls(tmp_path, monkeypatch):
    (tmp_path / "squeue").write_text("#!/bin/sh\nprintf '6|RUNNING|None|n1|gr\\366\\337e\\n7|RUNNING|None|n1|a\\n'\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    queue = SlurmQueue()
    queue.watch("a")
    assert queue.polled_after("a", time.monotonic(), 5.0).job
    queue.forget("a")


def test_one_poll_is_for_all_jobs_and_none_comes_early(answers):
    report, calls = answers
    report.append("1|RUNNING|None|n1|a\n2|PENDING|Priority||b\n")
    queue = SlurmQueue()
    for name in ("a", "b", "c"):
        queue.watch(name)
    polled = [queue.polled_after(name, time.monotonic(), 5.0) for name in ("a", "b", "c")]
    assert [job.job.state if job.job else None for job in polled] == ["RUNNING", "PENDING", None]
    for name in ("a", "b", "c"):
        queue.forget(name)
    queue.watch("d")
    queue.polled_after("d", time.monotonic(), 5.0)
    queue.forget("d")
    assert min(later - earlier for earlier, later in itertools.pairwise(calls)) >= 0.19


def test_a_controller_that_is_away_says_nothing_of_a_job(answers):
    report, calls = answers
    report.extend(["1|RUNNING|None|n1|a\n", None, None, "\n"])
    queue = SlurmQueue()
    queue.watch("a")
    assert queue.polled_after("a", time.monotonic(), 5.0).job
    while len(calls) < 3:
        time.sleep(0.02)
    assert queue.status("a").end == ""
    seen = queue.polled_after("a", time.monotonic() + 0.5, 5.0)
    assert seen.job.state == "RUNNING"
    assert seen.absences >= 1
    queue.forget("a")


SEEN = QueuedJob(number="1", state="RUNNING", nodes="n1")


@pytest.mark.parametrize(
    ("polled", "status"),
    [
        (PolledJob(), JobStatus()),
        (PolledJob(job=replace(SEEN, state="PENDING", nodes="")), JobStatus(waiting="queued (no reason yet)")),
        (PolledJob(job=SEEN), JobStatus(nodes="n1", is_running=True)),
        (PolledJob(job=replace(SEEN, state="COMPLETING")), JobStatus(nodes="n1")),
        (PolledJob(job=replace(SEEN, state="FAILED")), JobStatus(nodes="n1", end="FAILED")),
        (
            PolledJob(job=replace(SEEN, state="CANCELLED")),
            JobStatus(nodes="n1", end="CANCELLED", cause="was canceled (scancel)"),
        ),
        (PolledJob(job=SEEN, absences=1), JobStatus()),
        (PolledJob(job=SEEN, absences=2), JobStatus(end="not in the queue")),
        (
            PolledJob(job=replace(SEEN, state="TIMEOUT"), absences=2),
            JobStatus(end="not in the queue", cause="was ended by SLURM's time limit"),
        ),
    ],
)
def test_what_the_answers_mean_for_a_job(polled, status):
    assert polled.status == status


def test_an_answer_that_never_comes_is_not_waited_for(answers):
    report, _ = answers
    report.append(None)
    queue = SlurmQueue()
    queue.watch("a")
    assert queue.polled_after("a", time.monotonic(), 0.3).job is None
    queue.forget("a")


def test_a_job_is_no_step_of_the_job_that_submits_it():
    variables = {"SLURM_JOB_ID": "1", "SLURM_CONF": "/etc/slurm.conf", "SBATCH_PARTITION": "low", "HOME": "/"}
    hidden = {"SQUEUE_PARTITION": "low", "SCANCEL_STATE": "PENDING"}  # jobs of others would not be seen
    assert without_slurm_variables({**variables, **hidden}) == {
        "SLURM_CONF": "/etc/slurm.conf",
        "SBATCH_PARTITION": "low",
        "HOME": "/",
    }

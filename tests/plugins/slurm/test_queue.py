"""SLURM's queue: one poll for all jobs, and what its answers mean."""

import itertools
import os
import subprocess
import time
from dataclasses import replace

import pytest

from allranks.plugins.slurm import queue as slurm_queue
from allranks.plugins.slurm.allocation import Place
from allranks.plugins.slurm.queue import QueuedJob, Sighting, SlurmQueue, outside_of_jobs, parse


@pytest.fixture
def answers(monkeypatch):
    """squeue's answers, the last one again and again; None for none. Records the moments of its calls."""
    told, calls = [], []

    def run(command, **_):
        assert command[0] == "squeue"
        calls.append(time.monotonic())
        answer = told.pop(0) if len(told) > 1 else told[0]
        if answer is None:
            raise subprocess.TimeoutExpired(command, 1)
        return subprocess.CompletedProcess(command, 0, stdout=answer)

    monkeypatch.setattr(slurm_queue.subprocess, "run", run)
    monkeypatch.setattr(slurm_queue, "POLL", 0.2)
    return told, calls


def test_an_answer_is_read_whatever_a_name_holds():
    found = parse("7|PENDING|Resources||a\n8|RUNNING|None|n[1-2]|b|c\n")
    assert (found["a"].state, found["a"].reason, found["a"].is_waiting) == ("PENDING", "Resources", True)
    assert (found["b|c"].nodes, found["b|c"].reason, found["b|c"].has_ended) == ("n[1-2]", "", False)


def test_of_two_jobs_of_one_name_the_one_that_has_not_ended_counts():
    lines = ["8|PENDING|Priority||a", "7|CANCELLED|None||a"]
    assert [parse("\n".join(each))["a"].number for each in (lines, lines[::-1])] == ["8", "8"]


def test_names_in_another_encoding_do_not_end_the_polls(tmp_path, monkeypatch):
    (tmp_path / "squeue").write_text("#!/bin/sh\nprintf '6|RUNNING|None|n1|gr\\366\\337e\\n7|RUNNING|None|n1|a\\n'\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    queue = SlurmQueue()
    queue.watch("a")
    assert queue.look_after("a", time.monotonic(), 5.0).job
    queue.forget("a")


def test_one_poll_is_for_all_jobs_and_none_comes_early(answers):
    told, calls = answers
    told.append("1|RUNNING|None|n1|a\n2|PENDING|Priority||b\n")
    queue = SlurmQueue()
    for name in ("a", "b", "c"):
        queue.watch(name)
    sightings = [queue.look_after(name, time.monotonic(), 5.0) for name in ("a", "b", "c")]
    assert [each.job.state if each.job else None for each in sightings] == ["RUNNING", "PENDING", None]
    for name in ("a", "b", "c"):
        queue.forget(name)
    queue.watch("d")
    queue.look_after("d", time.monotonic(), 5.0)
    queue.forget("d")
    assert min(later - earlier for earlier, later in itertools.pairwise(calls)) >= 0.19


def test_a_controller_that_is_away_says_nothing_of_a_job(answers):
    told, calls = answers
    told.extend(["1|RUNNING|None|n1|a\n", None, None, "\n"])
    queue = SlurmQueue()
    queue.watch("a")
    assert queue.look_after("a", time.monotonic(), 5.0).job
    while len(calls) < 3:
        time.sleep(0.02)
    assert queue.look("a").end == ""
    seen = queue.look_after("a", time.monotonic() + 0.5, 5.0)
    assert seen.job.state == "RUNNING"
    assert seen.absences >= 1
    queue.forget("a")


SEEN = QueuedJob(number="1", state="RUNNING", nodes="n1")


@pytest.mark.parametrize(
    ("sighting", "place"),
    [
        (Sighting(), Place()),
        (Sighting(job=replace(SEEN, state="PENDING", nodes="")), Place(waiting="queued (no reason yet)")),
        (Sighting(job=SEEN), Place(nodes="n1", is_running=True)),
        (Sighting(job=replace(SEEN, state="COMPLETING")), Place(nodes="n1")),
        (Sighting(job=replace(SEEN, state="FAILED")), Place(nodes="n1", end="FAILED")),
        (
            Sighting(job=replace(SEEN, state="CANCELLED")),
            Place(nodes="n1", end="CANCELLED", cause="was canceled (scancel)"),
        ),
        (Sighting(job=SEEN, absences=1), Place()),
        (Sighting(job=SEEN, absences=2), Place(end="not in the queue")),
        (
            Sighting(job=replace(SEEN, state="TIMEOUT"), absences=2),
            Place(end="not in the queue", cause="was ended by SLURM's time limit"),
        ),
    ],
)
def test_what_the_answers_mean_for_a_job(sighting, place):
    assert sighting.place == place


def test_an_answer_that_never_comes_is_not_waited_for(answers):
    told, _ = answers
    told.append(None)
    queue = SlurmQueue()
    queue.watch("a")
    assert queue.look_after("a", time.monotonic(), 0.3).job is None
    queue.forget("a")


def test_a_job_is_no_step_of_the_job_that_submits_it():
    variables = {"SLURM_JOB_ID": "1", "SLURM_CONF": "/etc/slurm.conf", "SBATCH_PARTITION": "low", "HOME": "/"}
    hidden = {"SQUEUE_PARTITION": "low", "SCANCEL_STATE": "PENDING"}  # jobs of others would not be seen
    assert outside_of_jobs({**variables, **hidden}) == {
        "SLURM_CONF": "/etc/slurm.conf",
        "SBATCH_PARTITION": "low",
        "HOME": "/",
    }

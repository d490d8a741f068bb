"""What a fork's pull request gets of machines: of GitHub's what it needs, of one's own nothing without a reviewer."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from expressions import Open, Scope, filled
from hosted import Site, read_workflow, run_job, run_step

DIST = Path(__file__).parents[2] / ".github" / "workflows" / "dist.yml"
JOBS = read_workflow(DIST)["jobs"]

HERE, FORK = {"full_name": "owner/repository"}, {"full_name": "somebody/repository"}

ASK = "Ask whether the environment allranks-forks has reviewers"
REVIEWERS = {"type": "required_reviewers", "reviewers": [{"type": "User", "reviewer": {"login": "owner"}}]}


def from_a(repository):
    return {"pull_request": {"head": {"repo": repository}, "base": {"repo": HERE}, "labels": []}}


@pytest.fixture
def site(tmp_path):
    return Site(
        workflow=read_workflow(DIST),
        inputs={"python": ""},
        repository=tmp_path / "none",
        folder=tmp_path,
        environ={"PATH": os.environ["PATH"]},
        event=from_a(FORK),
        event_name="pull_request",
    )


OWN_MACHINES = [
    (from_a(FORK), ["self-hosted", "gpu-4"]),
    (from_a(None), ["self-hosted"]),  # the fork is gone
    (from_a(FORK), ["ubuntu-24.04-gpu4"]),  # a machine of any name may be anybody's
    (from_a(FORK), ["ubuntu-24.04", "gpu-4"]),
    (from_a(FORK), {"group": "ubuntu-24.04", "labels": ["gpu-4"]}),
]
FREE = [
    (from_a(FORK), ["ubuntu-24.04"]),
    (from_a(HERE), ["self-hosted"]),
    ({}, ["self-hosted"]),  # no pull request
    ({"merge_group": {"head_ref": "refs/heads/gh-readonly-queue/main/pr-1"}}, ["self-hosted"]),
]


def scope(event, runs_on, reviewed):
    needs = {"forks": {"outputs": {"reviewed": reviewed}}}
    contexts = {"github": {"event": Open(event)}, "matrix": {"runs_on": runs_on, "hosted": True}, "needs": needs}
    return Scope(contexts, {"success": True})


@pytest.mark.parametrize(("event", "runs_on"), OWN_MACHINES)
def test_a_fork_waits_for_a_reviewer_before_it_gets_a_machine_that_is_not_github_s(event, runs_on):
    """Whatever its matrix file says of who owns that machine."""
    here = scope(event, runs_on, "yes")
    assert filled(JOBS["run"]["environment"], here) == "allranks-forks"
    assert filled(JOBS["run"]["runs-on"], here) == runs_on


@pytest.mark.parametrize("reviewed", ["no", "", None])
@pytest.mark.parametrize(("event", "runs_on"), OWN_MACHINES)
def test_without_a_reviewer_it_gets_none_and_makes_no_environment(event, runs_on, reviewed):
    here = scope(event, runs_on, reviewed)
    assert filled(JOBS["run"]["environment"], here) == ""
    assert filled(JOBS["run"]["runs-on"], here) == "ubuntu-24.04"


@pytest.mark.parametrize(("event", "runs_on"), FREE)
def test_all_others_wait_for_nobody(event, runs_on):
    here = scope(event, runs_on, "")
    assert filled(JOBS["run"]["environment"], here) == ""
    assert filled(JOBS["run"]["runs-on"], here) == runs_on


@pytest.mark.parametrize("job", ["plan", "image", "report", "gate"])
@pytest.mark.parametrize(("event", "machine"), [(from_a(FORK), "ubuntu-24.04"), (from_a(HERE), "gpu-4"), ({}, "gpu-4")])
def test_a_fork_does_not_choose_the_machine_of_the_other_jobs(job, event, machine):
    here = Scope({"github": {"event": Open(event)}, "inputs": {"runner": "gpu-4"}})
    assert filled(JOBS[job]["runs-on"], here) == machine


@pytest.mark.parametrize(
    ("answer", "reviewed"),
    [
        ({"protection_rules": [{"type": "branch_policy"}, REVIEWERS]}, "yes"),
        ({"protection_rules": [{**REVIEWERS, "reviewers": []}]}, "no"),
        ({"protection_rules": [{"type": "wait_timer", "wait_timer": 30}]}, "no"),
        ({"protection_rules": []}, "no"),
        ({"message": "Not Found"}, "no"),
        (None, "no"),  # there is no such environment, or no answer
    ],
)
def test_an_environment_without_reviewers_is_none(site, answer, reviewed):
    if answer is not None:
        path = site.folder / "api/repos/owner/repository/environments/allranks-forks"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(answer))
    step = run_step(site, "forks", ASK)
    assert (step.outcome, step.outputs) == ("success", {"reviewed": reviewed}), step.log


def needs_of(reviewed):
    outputs = {"plan": {"attempt": "1", "options": "", "lock": ""}, "image": {"attempt": "1"}}
    return {
        **{job: {"outputs": output} for job, output in outputs.items()},
        "forks": {"outputs": {"reviewed": reviewed}},
    }


def entry(runs_on):
    times = {"timeout_minutes": 5, "step_timeout_minutes": 5}
    return {"slug": "a", "batch": "a-0", "cells": "gloo", "gpus": 0, "runs_on": runs_on} | times


def test_a_refused_fork_runs_nothing_and_says_why(site):
    job = run_job(site, "run", needs_of("no"), entry=entry(["self-hosted"]))
    outcomes = {step.outcome for step in job.steps[1:]}
    assert (job.result, outcomes) == ("failure", {"skipped"})
    [annotation] = job.annotations
    assert annotation["title"] == "A fork without a reviewer"
    assert "with required reviewers" in annotation["message"]


def test_its_first_step_is_the_one_that_refuses(site):
    assert JOBS["run"]["steps"][0]["name"] == "Refuse a fork without a reviewer"
    for reviewed, runs_on in (("yes", ["self-hosted"]), ("", ["ubuntu-24.04"])):
        step = run_step(site, "run", "Refuse a fork without a reviewer", needs_of(reviewed), entry(runs_on))
        assert step.outcome == "skipped"


MACHINE = "Refuse a fork on a machine that is not GitHub's"
USUAL = [["ubuntu-latest"], ["ubuntu-24.04"], ["ubuntu-22.04"], ["Ubuntu-Latest"]]


@pytest.mark.parametrize("reviewed", ["yes", "no", ""])
@pytest.mark.parametrize("labels", USUAL, ids=str)
@pytest.mark.parametrize("owner", ["self-hosted", "", "somebody", "github-hosted-like"])
def test_a_machine_with_a_label_of_github_s_runs_nothing_of_a_fork(site, owner, labels, reviewed):
    """Nobody agreed: for these labels, nobody is asked."""
    job = run_job(replace(site, owner=owner), "run", needs_of(reviewed), entry=entry(labels))
    assert job.result == "failure"
    assert [step.name for step in job.steps if step.outcome != "skipped"] == [MACHINE]
    [annotation] = job.annotations
    assert annotation["title"] == "A fork on a machine that is not GitHub's"
    assert "off your own runners" in annotation["message"]
    assert "not GitHub's has taken its job" in job.outputs["refused"]


@pytest.mark.parametrize("job", ["plan", "image", "report"])
def test_the_other_jobs_run_nothing_of_a_fork_there_either(site, job):
    found = run_job(replace(site, owner="self-hosted"), job, needs_of("yes"))
    assert found.result == "failure"
    assert [step.name for step in found.steps if step.outcome != "skipped"] == [MACHINE]


@pytest.mark.parametrize("job", [name for name, job in JOBS.items() if any("uses" in step for step in job["steps"])])
def test_machines_are_checked_before_anything_is_checked_out(job):
    names = [step["name"] for step in JOBS[job]["steps"]]
    uses = [place for place, step in enumerate(JOBS[job]["steps"]) if "uses" in step]
    assert names.index(MACHINE) < min(uses, default=len(names))
    assert names.index(MACHINE) == (1 if job == "run" else 0)


ALLOWED = [
    (from_a(FORK), "github-hosted", ["ubuntu-latest"], ""),
    (from_a(FORK), "github-hosted", ["ubuntu-24.04-gpu4"], "yes"),  # one of GitHub's larger machines
    (from_a(FORK), "self-hosted", ["self-hosted", "gpu-4"], "yes"),  # somebody agreed
    (from_a(HERE), "self-hosted", ["ubuntu-latest"], ""),
    ({}, "self-hosted", ["ubuntu-24.04"], ""),
    ({"merge_group": {"head_ref": "refs/heads/gh-readonly-queue/main/pr-1"}}, "self-hosted", ["self-hosted"], ""),
]


@pytest.mark.parametrize("allowed", ALLOWED, ids=str)
def test_nobody_else_is_refused_on_account_of_the_machine(site, allowed):
    event, owner, labels, reviewed = allowed
    step = run_step(replace(site, event=event, owner=owner), "run", MACHINE, needs_of(reviewed), entry(labels))
    assert step.outcome == ("success" if (event, reviewed) == (from_a(FORK), "") else "skipped"), step.log


def test_the_job_that_asks_has_nothing_of_the_fork():
    assert JOBS["forks"]["runs-on"] == "ubuntu-24.04"
    assert [step.get("uses") for step in JOBS["forks"]["steps"]] == [None]

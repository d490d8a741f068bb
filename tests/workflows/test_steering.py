"""What steers a run from outside of its repository: labels of a pull request, inputs of a dispatch, secrets."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from expressions import Scope, filled
from hosted import TOKEN, Site, read_workflow, run_job, run_step

DIST = Path(__file__).parents[2] / ".github" / "workflows" / "dist.yml"
LABELS = "Read the labels of the pull request"
LOGIN = "Log in to the registry"


@pytest.fixture
def site(tmp_path):
    """A machine whose docker writes down what it is told."""
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text('#!/bin/sh\necho "$@" "password: $(cat)"\n')
    docker.chmod(0o755)
    return Site(
        workflow=read_workflow(DIST),
        inputs={"select": "--where backend=gloo -- -x", "options": "-x --reruns 1 --maxfail=3"},
        repository=tmp_path / "none",
        folder=tmp_path,
        environ={"PATH": f"{docker.parent}:{os.environ['PATH']}"},
    )


@pytest.fixture
def labelled(site):
    """``labelled("ci-keep-going", keep_going_label=…)``: what labels make of a run's options."""

    def read(*labels, **inputs):
        event = {"pull_request": {"labels": [{"name": label} for label in labels]}}
        return run_step(replace(site, event=event, inputs={**site.inputs, **inputs}), "plan", LABELS)

    return read


def test_without_labels_or_a_pull_request_the_inputs_hold(site, labelled):
    expected = {
        "select": "--where backend=gloo -- -x",
        "options": "-x --reruns 1 --maxfail=3",
        "selected": "",
    }
    assert labelled("bug").outputs == expected
    assert run_step(site, "plan", LABELS).outputs == expected


def test_a_label_keeps_a_run_going(labelled):
    outputs = labelled("ci-keep-going").outputs
    assert outputs["select"] == "--where backend=gloo --"
    assert outputs["options"] == "--reruns 1"


def test_labels_select_cells_in_place_of_the_input(labelled):
    outputs = labelled("ci-cells:backend=nccl,world_size=2|4", "ci-cells:gloo-w2").outputs
    assert outputs["select"] == "--where=backend=nccl,world_size=2|4 gloo-w2"
    assert outputs["selected"] == "backend=nccl,world_size=2|4 gloo-w2"


def test_their_names_are_inputs(labelled):
    outputs = labelled("go-on", "only/gloo-w2", keep_going_label="go-on", cells_label="only/").outputs
    assert (outputs["select"], outputs["options"]) == ("gloo-w2", "--reruns 1")


@pytest.mark.parametrize(
    "text", ["--plan-file=/etc/passwd", "", "a b", "$(id)", "`id`", "a;id", "x\nselect=y", "a\u2028b", "*", "a%0Ab"]
)
def test_the_text_of_a_label_is_no_option_and_no_code(labelled, text):
    step = labelled(f"ci-cells:{text}")
    assert (step.outcome, set(step.outputs)) == ("failure", {"reason"})
    assert "::error title=A label that selects nothing::" in step.log


@pytest.mark.parametrize(
    ("dispatched", "select", "options"),
    [
        (None, "--where backend=gloo", ""),
        ({}, "--where backend=gloo", ""),
        ({"select": "--suite tiny", "options": "--reruns 2"}, "--suite tiny", "--reruns 2"),
    ],
)
def test_a_dispatch_has_its_own_inputs(site, dispatched, select, options):
    here = replace(site, inputs=None, dispatched=dispatched, event_name="workflow_dispatch" if dispatched else "push")
    outputs = run_step(here, "plan", LABELS).outputs
    assert (outputs["select"], outputs["options"]) == (select, options)


def test_a_call_without_a_selection_has_all_cells(site):
    assert run_step(replace(site, inputs={}), "plan", LABELS).outputs["select"] == ""


@pytest.fixture
def login(site):
    """``login(registry, **secrets)``: what docker is told, or an annotation."""

    def log_in(registry, **passed):
        return run_step(replace(site, inputs={"registry": registry}, secrets=passed), "image", LOGIN)

    return log_in


def test_github_s_own_registry_gets_the_token(login):
    assert login("ghcr.io/owner/r").log == f"login ghcr.io --username somebody --password-stdin password: {TOKEN}"


@pytest.mark.parametrize("registry", ["registry.example/ghcr.io/r", "ghcr.io.example/r", "ghcr.io:80/r", "ghcr.iox/r"])
def test_no_other_registry_gets_it(login, registry):
    step = login(registry)
    assert step.outcome == "failure"
    assert "::error title=No password for the registry::" in step.log
    assert TOKEN not in step.log


def test_secrets_of_the_call_log_in_to_any(login):
    for registry in ("registry.example/r", "ghcr.io/owner/r"):
        step = login(registry, registry_username="robot", registry_password="s")  # noqa: S106
        assert step.log.endswith("--username robot --password-stdin password: s")


def test_every_login_is_the_same():
    jobs = [*read_workflow(DIST)["jobs"].values(), *read_workflow(DIST.with_stem("images"))["jobs"].values()]
    logins = [step for job in jobs for step in job["steps"] if step["name"] == LOGIN]
    assert len(logins) == 3
    assert len({str((step["run"], step["env"])) for step in logins}) == 1


LISTS = "Get the list of disabled tests"


@pytest.mark.parametrize(
    ("content", "outcome"),
    [('{"test_x (__main__.TestX)": ["issue", []]}', "success"), ("[]", "failure"), ("{", "failure"), (None, "failure")],
)
def test_a_list_of_disabled_tests_goes_with_the_plan(site, content, outcome):
    path = site.folder / "list.json"
    if content is not None:
        path.write_text(content)
    workflow = read_workflow(DIST)
    steps = [step for step in workflow["jobs"]["plan"]["steps"] if step["name"] == LISTS]
    show = {"name": "Show", "run": 'cat "$RUNNER_TEMP/plan/disabled.json"'}
    steps = [{"name": "Folder", "run": 'mkdir "$RUNNER_TEMP/plan"'}, *steps, show]
    workflow["jobs"]["plan"] |= {"steps": steps, "outputs": {}}
    job = run_job(replace(site, workflow=workflow, inputs={"disabled": str(path)}), "plan", {})
    assert job.step(LISTS).outcome == outcome
    assert job.step("Show").log == (content if outcome == "success" else "")
    assert ("::error title=No list of disabled tests::" in job.step(LISTS).log) is (outcome == "failure")


def test_runs_are_told_of_the_list_only_if_there_is_one():
    [run] = [step for step in read_workflow(DIST)["jobs"]["run"]["steps"] if step["name"] == "Run"]
    for disabled, report in (("", ""), ("list.json", "/temp/plan/disabled.json")):
        scope = Scope({"inputs": {"disabled": disabled}, "runner": {"temp": "/temp"}})
        assert filled(run["env"]["DISABLED_TESTS_FILE"], scope) == report

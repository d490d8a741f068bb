"""A plan for several machines, each machine's part of it, and the report of what came back."""

import json
import shutil
from dataclasses import replace

import pytest
from junitparser import JUnitXml

from allranks.cli.main import main

SUITE = """
def test_one(rank):
    pass

def test_two(rank):
    pass
"""

RUNNERS = """
[[runners]]
labels = ["self-hosted"]
cores = 1
"""


@pytest.fixture
def allranks(run_id, capsys, monkeypatch):
    """A command in this process, as a part of the run: its exit code, and what it printed for programs."""
    monkeypatch.setenv("ALLRANKS_RUN_ID", run_id)
    return lambda *arguments: (main([str(argument) for argument in arguments]), capsys.readouterr().out)


@pytest.fixture
def repository(scratch):
    folder = scratch(SUITE)
    text = (folder / "matrix.toml").read_text()
    for old, new in (("world_size = [2]", "world_size = [1]"), ('isolation = "job"', 'isolation = "test"\nshards = 2')):
        assert old in text
        text = text.replace(old, new)
    (folder / "matrix.toml").write_text(text + RUNNERS)
    return folder


def messages(folder):
    """What the cases of a report say that are not passed, by suite."""
    suites = JUnitXml.fromfile(folder / "junit.xml")
    return {suite.name: [case.result[0].message for case in suite if case.result] for suite in suites}


@pytest.mark.thorough
def test_what_two_machines_ran_is_one_report_and_a_machine_that_never_came_is_missed(
    allranks, launch, repository, tmp_path, monkeypatch
):
    plan_file, gathered = tmp_path / "plan.json", tmp_path / "gathered"
    code, out = allranks(
        "plan", "--matrix", repository, "--format", "github", "--plan-file", plan_file, "--minutes-per-entry", 1
    )
    entries = json.loads(out)["include"]
    assert (code, [entry["jobs"] for entry in entries]) == (0, [1, 1])
    for entry in entries:
        monkeypatch.setenv("ALLRANKS_PLAN_FILE", str(plan_file))
        monkeypatch.setenv("ALLRANKS_BATCH", entry["batch"])
        machine = replace(launch, results=gathered / entry["slug"])
        done = machine(repository, "--engine", "process")
        assert done.code == 0, done.output
        assert "exit code 0" in done.output
        assert len(done.cases) == 1
    shutil.copy(plan_file, gathered / "run.json")
    assert allranks("report", gathered)[0] == 0
    assert messages(gathered) == {"gloo-w1-g0-env / tiny@1of2": [], "gloo-w1-g0-env / tiny@2of2": []}
    assert len({json.loads(path.read_text())["seed"] for path in gathered.glob("*/*/run.json")}) == 1

    shutil.rmtree(gathered / entries[1]["slug"])
    assert allranks("report", gathered)[0] == 3
    [lost] = messages(gathered)["gloo-w1-g0-env / tiny@2of2"]
    assert "left no results" in lost

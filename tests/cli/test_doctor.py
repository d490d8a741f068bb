"""``allranks doctor``: the output of findings; test_host_checks.py tests the checks."""

import json
from pathlib import Path

import pytest

from allranks.engines.base import Finding


def test_the_doctors_findings_are_printed_and_a_problem_is_exit_code_4(allranks, monkeypatch):
    found = [Finding("disk", "full", "Make room.")]
    monkeypatch.setattr("allranks.cli.host_checks.check_host", lambda *_, **__: [Finding("GPUs", "none"), *found])
    code, out, _ = allranks("doctor")
    assert code == 4
    assert out == "ok       GPUs: none\nPROBLEM  disk: full\n         -> Make room.\n1 problem\n"
    found.clear()
    assert allranks("doctor")[:2] == (0, "ok       GPUs: none\nno problems found\n")


def test_findings_can_be_printed_as_json(allranks, monkeypatch):
    found = [Finding("GPUs", "none"), Finding("disk", "full", "Make room.")]
    monkeypatch.setattr("allranks.cli.host_checks.check_host", lambda *_, **__: found)
    code, out, err = allranks("doctor", "--json")
    assert (code, err) == (4, "")
    assert json.loads(out) == {
        "schema": 1,
        "problems": 1,
        "findings": [
            {"subject": "GPUs", "state": "none", "remedy": None},
            {"subject": "disk", "state": "full", "remedy": "Make room."},
        ],
    }


def test_a_quiet_doctor_prints_only_problems(allranks, monkeypatch):
    found = [Finding("GPUs", "none"), Finding("disk", "full", "Make room.")]
    monkeypatch.setattr("allranks.cli.host_checks.check_host", lambda *_, **__: found)
    assert allranks("doctor", "-q")[:2] == (4, "PROBLEM  disk: full\n         -> Make room.\n1 problem\n")


@pytest.fixture
def demands(monkeypatch):
    """The cells and engines of all calls of check_demands."""
    asked = []

    def check_demands(cells, _matrix, target):
        asked.append((sorted(cell.id for cell in cells), target.engine))
        return [Finding("driver", "too old", "Install a newer one.")]

    monkeypatch.setattr("allranks.cli.machine_demands.check_demands", check_demands)
    return asked


def test_only_the_requirements_of_the_cells_are_checked(allranks, demands):
    code, out, _ = allranks("doctor", "--cell", "nccl", "--cell", "gloo-w1-g0-env", "--engine", "process")
    assert (code, out) == (4, "PROBLEM  driver: too old\n         -> Install a newer one.\n1 problem\n")
    assert demands == [(["gloo-w1-g0-env", "nccl-w2-g2-env"], "process")]


@pytest.mark.usefixtures("runners")
def test_the_requirements_of_a_batch_are_checked_with_the_engine_of_its_machine(allranks, demands, monkeypatch):
    _, out, _ = allranks("plan", "--format", "github", "--plan-file", "plan.json")
    batch = next(entry["batch"] for entry in json.loads(out)["include"] if entry["gpus"])
    monkeypatch.setenv("ALLRANKS_PLAN_FILE", "plan.json")
    monkeypatch.setenv("ALLRANKS_BATCH", batch)
    assert allranks("doctor")[0] == 4
    assert demands == [(["nccl-w2-g2-env"], "process")]


@pytest.mark.usefixtures("runners", "demands")
def test_missing_requirements_are_the_result_of_each_job_of_the_batch(allranks, monkeypatch):
    _, out, _ = allranks("plan", "--format", "github", "--plan-file", "plan.json")
    batch = next(entry["batch"] for entry in json.loads(out)["include"] if entry["gpus"])
    monkeypatch.setenv("ALLRANKS_PLAN_FILE", "plan.json")
    monkeypatch.setenv("ALLRANKS_BATCH", batch)
    code, _, err = allranks("doctor", "--results", "left")
    assert code == 4
    assert f"does not meet the requirements of the batch {batch}: driver." in err
    records = [json.loads(path.read_text()) for path in Path("left/latest").glob("cells/*/*/attempt-1/job.json")]
    assert [record["error"]["why"] for record in records] == ["driver: too old."] * len(records) != []


@pytest.mark.parametrize(
    ("variables", "arguments"), [(["BATCH"], []), (["PLAN_FILE"], []), (["PLAN_FILE", "BATCH"], ["--cell", "nccl"])]
)
def test_a_batch_needs_its_plan_and_cannot_be_combined_with_cells(allranks, monkeypatch, variables, arguments):
    for name in variables:
        monkeypatch.setenv(f"ALLRANKS_{name}", "x")
    code, _, err = allranks("doctor", *arguments)
    assert code == 2
    unset = f"The variable ALLRANKS_{variables[0]} is set, but ALLRANKS_"
    assert ("--cell cannot be combined" if arguments else unset) in err

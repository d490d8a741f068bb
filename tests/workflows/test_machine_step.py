"""The step that compares a machine with its cells, unchanged, with a doctor that is made up."""

import subprocess
from pathlib import Path

import pytest
from hosted import read_workflow

ROOT = Path(__file__).parents[2]
NAME = "Compare the machine with what its cells need"


@pytest.fixture
def step():
    steps = read_workflow(ROOT / ".github/workflows/dist.yml")["jobs"]["run"]["steps"]
    names = [each["name"] for each in steps]
    assert names.index("Get the plan") < names.index(NAME) < names.index("Get the images"), "before anything is fetched"
    return steps[names.index(NAME)]


@pytest.fixture
def run(step, tmp_path, monkeypatch):
    """Run the step on a machine where the doctor prints something, and ends with a code."""
    doctor = tmp_path / "allranks" / "bin" / "allranks"
    doctor.parent.mkdir(parents=True)
    files = {name: tmp_path / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for name, value in {**files, "RUNNER_TEMP": tmp_path, "MATRIX": ".", "PACK": "cuda-g2-1of1@12"}.items():
        monkeypatch.setenv(name, str(value))

    def run(said, code):
        doctor.write_text(f"#!/bin/sh\necho \"$@\" > {tmp_path}/asked\nprintf '%s' '{said}'\nexit {code}\n")
        doctor.chmod(0o755)
        shell = ["/bin/bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(shell, capture_output=True, text=True, check=False)
        return done, *(path.read_text() if path.exists() else "" for path in files.values())

    return run


def test_a_machine_without_a_problem_goes_on(run, tmp_path):
    done, output, summary = run("no problem was found\n", 0)
    assert (done.returncode, output, summary) == (0, "", "")
    wanted = f"doctor --quiet --matrix . --plan-file {tmp_path}/plan/plan.json --pack cuda-g2-1of1@12\n"
    assert (tmp_path / "asked").read_text() == wanted


def test_what_it_lacks_is_the_annotation_the_summary_and_the_gates_reason(run):
    done, output, summary = run(
        "PROBLEM  driver: too old\n         -> Renew it.\nPROBLEM  GPUs: one\n2 problem(s)\n", 4
    )
    assert done.returncode == 4
    [sentence] = [line for line in done.stdout.splitlines() if line.startswith("::error")]
    assert sentence.endswith(": driver: too old;GPUs: one.")
    assert output.startswith("reason=On ")
    assert "driver: too old;GPUs: one." in summary


def test_a_doctor_that_refuses_leads_to_its_log(run):
    done, output, _ = run("", 2)
    assert done.returncode == 2
    assert output.endswith("see the log of this step.\n")


def test_cells_without_gpus_are_not_compared(step):
    assert step["if"] == "matrix.gpus > 0"

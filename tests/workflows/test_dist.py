"""dist.yml as a user's repository calls it, in real containers: each job on its own machine, and each way to fail."""

import os
import re
import secrets
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hosted import Cancellation, JobRun, Run, Site, first_attempt, read_workflow, rerun
from two_batches import GOOD, MATRIX, OTHER

ROOT = Path(__file__).parents[2]
DIST = ROOT / ".github" / "workflows" / "dist.yml"

RECIPE = '[images.cpu]\ntorch = "2.13.0"\npackages = ["numpy", "expecttest"]\n'

SUITE = """\
import torch
import torch.distributed as dist


def test_ranks_add_up():
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == dist.get_world_size()


def test_every_rank_knows_itself(rank):
    assert rank == dist.get_rank()
"""

FAILS = SUITE.replace("dist.get_world_size()", "3, 'one rank too many'")
HANGS = SUITE.replace("    total =", "    import signal; signal.pause()\n    total =")
EMPTY = "import torch\n"

pytestmark = pytest.mark.docker


def command(*words: str, folder: Path, environ: dict[str, str]) -> str:
    done = subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def image(docker_client, tmp_path_factory) -> str:  # noqa: ARG001 - is skipped without a daemon
    """The image that other tests' cells run in, too."""
    folder = tmp_path_factory.mktemp("image")
    (folder / "suite").mkdir()
    head = '[matrix]\nbackend = ["gloo"]\nworld_size = [2]\n[suites.tiny]\npath = "suite"\n'
    (folder / "matrix.toml").write_text(head + RECIPE)
    output = command(sys.executable, "-m", "allranks", "build", folder=folder, environ=dict(os.environ))
    return output.splitlines()[-1].removeprefix("cpu: ")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> Path:
    """What allranks needs, and what builds it, as a package index would have them."""
    folder = tmp_path_factory.mktemp("wheels")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    pure = ("--only-binary=:all:", "--platform=any", "--implementation=py", "--abi=none", "--python-version=3.11")
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder))
    command(*pip, *pure, *needed, folder=folder, environ=dict(os.environ))
    return folder


@pytest.fixture(scope="module")
def allranks(tmp_path_factory) -> Path:
    """This repository, as a commit has it."""
    folder = tmp_path_factory.mktemp("allranks")
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "CHANGELOG.md", "LICENSE", "src", "suites", "docker"):
        command("cp", "-a", str(ROOT / name), str(folder), folder=folder, environ=dict(os.environ))
    return folder


@pytest.fixture(scope="module")
def site(image, wheels, allranks, tmp_path_factory) -> Site:
    """A user's repository with nothing but a matrix file and tests."""
    folder = tmp_path_factory.mktemp("github")
    repository = folder / "repository"
    for suite in ("good", "other"):
        (repository / "tests" / suite).mkdir(parents=True)
        (repository / "tests" / suite / f"test_{suite}.py").write_text(SUITE)
    (repository / "matrix.toml").write_text(MATRIX.format(image=image))
    kept = ("HOME", "PATH", "XDG_CACHE_HOME", "DOCKER_HOST", "ALLRANKS_BASE_IMAGE", "LANG")
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_NO_COMPILE": "1"}
    return Site(
        workflow=read_workflow(DIST),
        inputs={"name": f"t{secrets.token_hex(3)}"},
        repository=repository,
        folder=folder / "machines",
        environ={name: os.environ[name] for name in kept if name in os.environ} | pip,
        allranks=allranks,
    )


@pytest.fixture(scope="module")
def run(site) -> Run:
    """The first attempt, in which all is well."""
    return first_attempt(site)


@pytest.fixture
def again(site, run, tmp_path) -> Callable[..., Run]:
    """Run the other batch again, and all that needs it, with another suite; or only these, without a suite."""

    def repeat(suite: str = "", *, of: Run = run, change: Callable[[Run], object] = lambda _run: None, **others) -> Run:
        repository = tmp_path / secrets.token_hex(3)
        command("cp", "-a", str(site.repository), str(repository), folder=tmp_path, environ=dict(os.environ))
        (repository / "tests" / "other" / "test_other.py").write_text(suite)
        here = replace(site, repository=repository, folder=tmp_path / "machines", **others)
        before = replace(of, jobs=dict(of.jobs), service=of.service.copy())
        change(before)
        return rerun(here, before, lambda job, slug: slug == OTHER if suite else job == "report")

    return repeat


@pytest.fixture(autouse=True)
def nothing_is_left(left_of, site) -> Iterator[None]:
    yield
    assert left_of(f"github-4711-1-{site.inputs['name']}") == []


def gate_of(run: Run) -> JobRun:
    return run.job("gate")


def errors_of(job: JobRun) -> list[str]:
    return [annotation["message"] for annotation in job.annotations if annotation["level"] == "error"]


def test_a_good_run_opens_the_gate(run):
    assert run.results == {
        "plan": "success",
        "image": "success",
        "forks": "skipped",
        f"run {GOOD}": "success",
        f"run {OTHER}": "success",
        "report": "success",
        "gate": "success",
    }, "\n".join(job.log for job in run.jobs.values())
    assert "The gate is open:** 2 planned jobs" in gate_of(run).summary
    summary = run.job("report").summary
    assert "4 tests, none failed" in summary
    assert "[The whole report](https://github.com/" in summary
    assert re.search(r"gloo\\-w2\\-g0\\-env|gloo-w2-g0-env", summary)
    assert "running in sha256:" in run.job("run", GOOD).log or "running in allranks/" in run.job("run", GOOD).log
    assert [run.job(job).annotations for job in ("report", "gate")] == [[], []]


def test_a_failing_test_closes_it_and_a_rerun_of_what_failed_opens_it(again):
    failed = again(FAILS)
    assert failed.results[f"run {OTHER}"] == failed.results["report"] == failed.results["gate"] == "failure"
    assert failed.job("run", GOOD).attempt == 1
    assert "one rank too many" in failed.job("report").summary
    assert "- the jobs run: failure where it must be success" in gate_of(failed).summary
    assert "- exit code of the merged report: 1 where it must be 0" in gate_of(failed).summary
    [annotation] = failed.job("report").annotations
    assert annotation["file"] == "tests/other/test_other.py"
    assert errors_of(failed.job("run", OTHER)) == []  # the report's are for all machines together

    mended = again(SUITE, of=failed)
    assert mended.results["gate"] == "success"
    assert "1 flaky or fixed test" in mended.job("report").summary
    assert "4 tests, none failed" in mended.job("report").summary


def test_an_artifact_that_never_came_closes_it(again):
    lost = again(change=lambda run: run.service.lose(f"*-results-*-{OTHER}-*"))
    assert lost.results[f"run {OTHER}"] == "success"
    assert lost.results["report"] == lost.results["gate"] == "failure"
    assert "it did not start, or its results were lost" in lost.job("report").summary
    assert "- exit code of the merged report: 3 where it must be 0" in gate_of(lost).summary


def test_a_cancelled_job_closes_it_and_what_it_had_found_is_reported(again):
    cancelled = again(HANGS, cancellation=Cancellation(OTHER, "gloo-w2-g0-tcp/other: running "))
    job = cancelled.job("run", OTHER)
    assert job.result == "cancelled"
    assert "interrupted: this run's processes were stopped, and its containers removed" in job.step("Run").log
    assert job.step("Pass the results on").outcome == "success"
    assert cancelled.results["gate"] == "failure"
    assert "- the jobs run: cancelled where it must be success" in gate_of(cancelled).summary
    assert "- exit code of the merged report: 130 where it must be 0" in gate_of(cancelled).summary


def test_a_cell_without_a_test_closes_it(again):
    empty = again(EMPTY)
    assert empty.results["gate"] == "failure"
    assert "No test was collected" in empty.job("report").summary


def test_results_of_an_earlier_plan_stand_in_for_nothing(again):
    def plan_anew(run: Run) -> None:
        """What is there after a rerun of everything, before any machine has run."""
        [plan] = [artifact for artifact in run.service.artifacts if "-plan-" in artifact.name]
        run.service.artifacts.append(replace(plan, name=plan.name.replace("-plan-1", "-plan-2"), attempt=2))
        run.jobs["plan", ""] = replace(run.job("plan"), outputs={**run.job("plan").outputs, "attempt": "2"})

    renewed = again(change=plan_anew)
    assert renewed.results["gate"] == "failure"
    assert "did not start, or its results were lost. (2 tests in 2 cells; batches " in renewed.job("report").summary


def test_a_fork_without_a_reviewer_closes_it_and_gets_no_machine_of_the_user_s(again):
    here, fork = {"full_name": "owner/repository"}, {"full_name": "somebody/repository"}
    event = {"pull_request": {"head": {"repo": fork}, "base": {"repo": here}, "labels": []}}
    refused = again(SUITE, event=event, event_name="pull_request")
    job = refused.job("run", OTHER)
    assert (job.result, job.runs_on, job.environment) == ("failure", "ubuntu-24.04", "")
    assert [annotation["title"] for annotation in job.annotations] == ["A fork without a reviewer"]
    assert refused.results["gate"] == "failure"


NO_DAEMON = "No Docker daemon answers."


def test_a_machine_that_cannot_run_its_batch_tells_why_everywhere_and_a_rerun_mends_it(again, site, tmp_path):
    refused = again(SUITE, environ={**site.environ, "DOCKER_HOST": f"unix://{tmp_path}/none.sock"})
    job, report = refused.job("run", OTHER), refused.job("report")
    assert job.step("Run").outcome == "failure"
    assert job.step("Pass the results on").outcome == "success"
    assert [NO_DAEMON in error for error in errors_of(job)] == [True]
    assert f"## allranks run: exit code 4\n\n{NO_DAEMON}" in job.summary
    assert [NO_DAEMON in error for error in errors_of(report)] == [True]
    assert f"**Cause:** {NO_DAEMON}" in report.summary
    assert "left no results" not in report.summary
    cause = f"{NO_DAEMON} \\(batch {OTHER}; exit code 4\\)"
    assert gate_of(refused).summary.startswith(f"**The gate is closed:** {cause}\n")
    assert "- exit code of the merged report: 4 where it must be 0" in gate_of(refused).summary
    assert again(SUITE, of=refused).results["gate"] == "success"


def test_an_image_that_cannot_be_built_is_the_reason_of_every_cell(site, tmp_path):
    repository = tmp_path / "repository"
    command("cp", "-a", str(site.repository), str(repository), folder=tmp_path, environ=dict(os.environ))
    recipe = 'torch = "2.13.0"\npackages = ["no-such-package-of-anyone"]'
    (repository / "matrix.toml").write_text(MATRIX.replace('image = "{image}"', recipe))
    refused = first_attempt(replace(site, repository=repository, folder=tmp_path / "machines"))
    assert refused.results == {
        "plan": "success", "image": "failure", "forks": "skipped", "run": "skipped", "report": "failure",
        "gate": "failure",
    }  # fmt: skip
    why = "The packages of image cpu could not be resolved."
    assert [[why in error for error in errors_of(refused.job(job))] for job in ("image", "report")] == [[True], [True]]
    cause = rf"{why}.*\(2 tests in 2 cells; batches {GOOD}, {OTHER}; exit code 4\\\)"
    assert re.search(rf"\*\*Cause:\*\* {cause}", refused.job("report").summary)
    assert gate_of(refused).summary.startswith(f"**The gate is closed:** image: {why}")


def test_a_selection_that_leaves_no_cell_is_the_first_thing_that_the_gate_says(site, tmp_path):
    empty = replace(site, inputs={**site.inputs, "select": "--where world_size=7"}, folder=tmp_path)
    run = first_attempt(empty)
    assert [run.results[job] for job in ("plan", "image", "run", "report")] == ["failure", *["skipped"] * 3]
    why = "The matrix has no cell with world_size 7."
    assert [why in error for error in errors_of(run.job("plan"))] == [True]
    assert why.replace("_", r"\_") in run.job("plan").summary
    assert gate_of(run).summary.startswith(f"**The gate is closed:** plan: {why}".replace("_", r"\_"))
    assert len(gate_of(run).summary.splitlines()) == 4

"""dist.yml as another repository calls it, on act: containers for machines, GitHub's own actions, and each way to fail.

act has no environments, no concurrency and no re-run of one job, ``null != null`` is true there, and all entries of a
matrix end as the worst of them: these are left to tests/workflows. Its ``job`` context lacks the commit of a called
workflow, so a caller here names a wheel of allranks, and it copies the caller's files in place of actions/checkout.
What stands between its artifact server and the newest actions is in artifact_proxy.py.
"""

import re
import shutil
from collections.abc import Callable, Iterator
from zipfile import ZipFile

import docker
import pytest
from callers import ROOT, SUITE, command, lay
from on_act import LABEL, ActRun, Line, run_on_act
from two_batches import GOOD, MATRIX, OTHER

pytestmark = [pytest.mark.docker, pytest.mark.act]

ONE = "--where init_method=env"
LOST = "The job left no results: it did not start, or its results were lost"
FAILS = SUITE.replace("dist.get_world_size()", "3, 'one rank too many'")
HANGS = SUITE.replace("    total =", "    import signal; signal.pause()\n    total =")

WITH_GPUS = """\
[matrix]
backend = ["nccl"]
world_size = [2]
gpu_count = [2]

[suites.good]
path = "tests/good"

[images.cuda]
image = "{image}"

[[runners]]
labels = ["self-hosted", "gpu"]
gpus = 2
"""


def gate_reasons(run: ActRun) -> str:
    """The gate's summary, which is closed."""
    gate = run.job("gate")
    assert gate.result == "failure", run.log
    assert "The gate is closed" in gate.summary
    return plain(gate.summary)


def plain(markdown: str) -> str:
    """A summary's text without the signs before those that Markdown would take for its own."""
    return re.sub(r"\\(?=[!-/:-@\[-`{-~])", "", markdown)


def everywhere(run: ActRun, sentence: str) -> None:
    """The reason stands where people look: in an annotation, in the summary of a job, and in the gate's."""
    assert [message for message in run.errors if sentence in message], run.errors
    assert sentence in plain("".join(job.summary for place, job in run.jobs.items() if place[0] != "gate"))
    assert sentence in gate_reasons(run)


def once(when: Callable[[Line], bool], do: Callable[[], object]) -> Callable[[Line], object]:
    """``do()`` at the first line for which ``when`` is true."""
    done = []

    def watch(line: Line) -> None:
        if not done and when(line):
            done.append(line)
            do()

    return watch


def test_one_batch_opens_the_gate(push):
    run = push(MATRIX, {"good": SUITE, "other": SUITE}, select=ONE)
    assert run.results == dict.fromkeys(("plan", "image", f"run {GOOD}", "report", "gate"), "success"), run.log
    assert "1 test, none failed" in run.job("report").summary
    assert "The gate is open:** 1 planned jobs" in run.job("gate").summary
    assert run.errors == []


def test_two_batches_open_it(push):
    run = push(MATRIX, {"good": SUITE, "other": SUITE})
    jobs = ("plan", "image", f"run {GOOD}", f"run {OTHER}", "report", "gate")
    assert run.results == dict.fromkeys(jobs, "success"), run.log
    assert "2 tests, none failed" in run.job("report").summary
    assert "The gate is open:** 2 planned jobs" in run.job("gate").summary
    assert run.errors == []


def test_a_failing_test_closes_it(push):
    run = push(MATRIX, {"good": SUITE, "other": FAILS})
    assert [run.job("run", slug).step("Run").outcome for slug in (GOOD, OTHER)] == ["success", "failure"]
    assert run.results[f"run {OTHER}"] == run.results["report"] == "failure"
    [annotation] = [
        annotation for annotation in run.job("report").annotations if "one rank too many" in annotation["message"]
    ]
    assert (annotation["file"], annotation["line"]) == ("tests/other/test_other.py", "8")
    everywhere(run, "one rank too many")


def test_a_lost_artifact_closes_it(push, tmp_path):
    def lose() -> None:
        [artifact] = (tmp_path / "act" / "artifacts").glob(f"*/*-results-1-{OTHER}-1")
        shutil.rmtree(artifact)

    def uploaded(line: Line) -> bool:
        return line.get("jobResult") == "success" and line["matrix"].get("slug") == OTHER

    run = push(MATRIX, {"good": SUITE, "other": SUITE}, watch=once(uploaded, lose))
    assert run.results[f"run {OTHER}"] == "success"
    assert run.results["report"] == "failure"
    everywhere(run, LOST)
    assert OTHER in gate_reasons(run)


@pytest.fixture
def removed_cells(name, docker_client, nothing_is_left) -> Iterator[None]:  # noqa: ARG001 - looks after this
    """Take away the containers of a cell whose machine is gone, with all that it would have cleaned up."""
    yield
    mine = {"label": f"allranks.run=github-1-1-{name}"}
    for container in docker_client.containers.list(all=True, filters=mine):
        container.remove(force=True, v=True)
    for kind in (docker_client.networks, docker_client.volumes):
        for item in kind.list(filters=mine):
            item.remove()


@pytest.mark.usefixtures("removed_cells")
def test_a_killed_runner_closes_it(push, docker_client: docker.DockerClient):
    def kill() -> None:
        [machine] = docker_client.containers.list(filters={"label": LABEL})
        machine.kill()

    def runs(line: Line) -> bool:
        return "gloo-w2-g0-env/good: running " in line["msg"]

    run = push(MATRIX, {"good": HANGS, "other": SUITE}, select=ONE, watch=once(runs, kill))
    assert run.results[f"run {GOOD}"] == run.results["report"] == "failure"
    everywhere(run, LOST)
    assert GOOD in gate_reasons(run)


def test_an_empty_selection_closes_it(push):
    run = push(MATRIX, {"good": SUITE, "other": SUITE}, select="--where world_size=16")
    assert run.results["plan"] == "failure"
    assert "image" not in run.results
    everywhere(run, "has no cell with world_size 16")


def test_a_machine_without_its_gpus_closes_it(push):
    run = push(WITH_GPUS, {"good": SUITE})
    [slug] = [slug for job, slug in run.jobs if job == "run"]
    assert run.job("run", slug).result == run.results["report"] == "failure"
    everywhere(run, "needs: GPUs")
    assert "needs 2; this machine has 0" in run.summary
    assert slug in gate_reasons(run)
    assert "exit code of the merged report: 4" in gate_reasons(run)


OF_ALLRANKS = (
    "pyproject.toml",
    "hatch_build.py",
    "README.md",
    "CHANGELOG.md",
    "LICENSE",
    "src",
    "suites",
    "docker",
    ".github",
)


@pytest.mark.parametrize("name", ["allranks"])
@pytest.mark.usefixtures("name", "nothing_is_left")
def test_a_push_to_the_repository_of_dist_itself_tests_its_own_commit(runner, image, tmp_path):
    repository = tmp_path / "repository"
    repository.mkdir()
    for item in OF_ALLRANKS:
        command("cp", "-a", str(ROOT / item), str(repository), folder=ROOT)
    version = repository / "src" / "allranks" / "__init__.py"
    version.write_text(re.sub('__version__ = "[^"]*"', '__version__ = "98.7"', version.read_text()))
    lay(repository, MATRIX.replace("{image}", image), {"good": SUITE, "other": SUITE})
    run = run_on_act(runner, repository, tmp_path / "act", workflow=".github/workflows/dist.yml")
    jobs = ("plan", "image", f"run {GOOD}", f"run {OTHER}", "report", "gate")
    assert run.results == dict.fromkeys(jobs, "success"), run.log
    assert "The gate is open:** 2 planned jobs" in run.job("gate").summary
    [plan] = run.artifacts.glob("*/allranks-plan-1/*.zip")
    assert "wheels/allranks-98.7-py3-none-any.whl" in ZipFile(plan).namelist()

"""allranks in the jobs of dist.yml: built from the workflow's own commit, and everywhere the same files, by hash.

What is built is a small program of its name, by a backend of its own: no index is asked.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hosted import JobRun, Site, read_workflow, run_job
from service import Service

DIST = Path(__file__).parents[2] / ".github" / "workflows" / "dist.yml"

BACKEND = """\
import zipfile

NAME, VERSION, NEEDS = {name!r}, {version!r}, {needs!r}

def build_wheel(folder, config_settings=None, metadata_directory=None):
    info, wheel = f"{{NAME}}-{{VERSION}}.dist-info", f"{{NAME}}-{{VERSION}}-py3-none-any.whl"
    with zipfile.ZipFile(f"{{folder}}/{{wheel}}", "w") as archive:
        archive.write("program.py", f"{{NAME}}.py")
        needs = "".join(f"Requires-Dist: {{each}}\\n" for each in NEEDS)
        fields = f"Metadata-Version: 2.1\\nName: {{NAME}}\\nVersion: {{VERSION}}\\n{{needs}}"
        archive.writestr(f"{{info}}/METADATA", fields)
        archive.writestr(f"{{info}}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr(f"{{info}}/entry_points.txt", f"[console_scripts]\\n{{NAME}} = {{NAME}}:main\\n")
        archive.writestr(f"{{info}}/RECORD", "")
    return wheel
"""

PROGRAM = """\
import sys
from importlib.metadata import version
from pathlib import Path

def main():
    if "plan" in sys.argv:
        Path(sys.argv[sys.argv.index("--plan-file") + 1]).write_text('{"jobs": []}')
        print('{"include": []}')
    print("allranks", version("allranks"), "with leaf", version("leaf"), file=sys.stderr)
"""


def project(folder: Path, name: str, version: str, *needs: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "backend.py").write_text(BACKEND.format(name=name, version=version, needs=needs))
    (folder / "program.py").write_text(PROGRAM)
    build = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (folder / "pyproject.toml").write_text(build)
    return folder


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> Path:
    """An index on which somebody has registered the name of allranks."""
    folder = tmp_path_factory.mktemp("index")
    for name, version, needs in (("leaf", "1.0", ()), ("leaf", "2.0", ()), ("allranks", "9.9", ("leaf<2",))):
        source = project(folder / "source" / f"{name}-{version}", name, version, *needs)
        build = f"import backend; backend.build_wheel({str(folder)!r})"
        subprocess.run([sys.executable, "-c", build], cwd=source, check=True)
    return folder


@pytest.fixture(scope="module")
def site(index, tmp_path_factory) -> Site:
    folder = tmp_path_factory.mktemp("github")
    (folder / "repository" / "tests").mkdir(parents=True)
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_CONFIG_FILE": os.devnull}
    return Site(
        workflow=read_workflow(DIST),
        inputs={},
        repository=folder / "repository",
        folder=folder / "machines",
        environ={"PATH": os.environ["PATH"], "HOME": str(folder)} | pip,
        allranks=project(folder / "allranks", "allranks", "0.5", "leaf"),
    )


@pytest.fixture(scope="module")
def planned(site) -> tuple[Service, JobRun]:
    service = Service(site.folder / "service")
    return service, run_job(replace(site, installed=[]), "plan", {}, service)


@pytest.fixture
def report(site, planned, tmp_path):
    """``report(change)``: the step that installs allranks in a later job, once a plan's artifact has been changed."""

    def run(change=lambda _folder: None):
        service, plan = planned
        [artifact] = service.artifacts
        content = tmp_path / "content"
        shutil.copytree(artifact.content, content)
        change(content)
        kept = Service(tmp_path / "service", [replace(artifact, content=content)])
        needs = {
            "plan": {"result": "success", "outputs": plan.outputs},
            "image": {"outputs": {}},
            "run": {"outputs": {}},
        }
        environ = {name: value for name, value in site.environ.items() if not name.startswith("PIP_")}
        here = replace(site, environ=environ, folder=tmp_path / "machines", installed=[])
        return run_job(here, "report", needs, kept).step("Install allranks")

    return run


@pytest.mark.thorough
def test_it_is_built_from_the_commit_of_the_workflow_whatever_an_index_has(planned):
    _, plan = planned
    assert plan.result == "success", plan.log
    assert "allranks 0.5 with leaf 2.0" in plan.step("Plan").log


def test_all_of_it_is_passed_on_with_hashes(planned):
    service, _ = planned
    [artifact] = service.artifacts
    there = sorted(path.name for path in (artifact.content / "wheels").iterdir())
    assert there == ["allranks-0.5-py3-none-any.whl", "leaf-2.0-py3-none-any.whl", "requirements.txt"]
    lines = (artifact.content / "wheels" / "requirements.txt").read_text().splitlines()
    assert [line.partition(" --hash=sha256:")[0] for line in lines] == ["allranks==0.5", "leaf==2.0"]


def test_another_job_installs_that_without_an_index(report):
    assert report().outcome == "success"


def test_a_changed_list_of_wheels_is_refused(report):
    def change(folder):
        with (folder / "wheels" / "requirements.txt").open("a") as file:
            file.write("another==1.0 --hash=sha256:00\n")

    step = report(change)
    assert step.outcome == "failure"
    assert "::error title=Another allranks::" in step.log


def test_a_changed_wheel_is_refused(report, index):
    def change(folder):
        shutil.copyfile(index / "leaf-1.0-py3-none-any.whl", folder / "wheels" / "leaf-2.0-py3-none-any.whl")

    step = report(change)
    assert step.outcome == "failure"
    assert "DO NOT MATCH THE HASHES" in step.log


def test_a_version_that_is_asked_for_comes_from_the_index_and_is_passed_on(site, tmp_path):
    service = Service(tmp_path / "service")
    plan = run_job(replace(site, inputs={"allranks": "allranks==9.*"}, installed=[]), "plan", {}, service)
    assert "allranks 9.9 with leaf 1.0" in plan.step("Plan").log
    [artifact] = service.artifacts
    assert (artifact.content / "wheels" / "allranks-9.9-py3-none-any.whl").exists()


def test_a_runner_that_does_not_tell_the_commit_ends_it_with_a_sentence(site):
    plan = run_job(replace(site, allranks=None, installed=[]), "plan", {})
    assert plan.result == "failure"
    assert plan.step("Install allranks").outcome == "skipped"
    [annotation] = plan.annotations
    assert annotation["title"] == "No commit of allranks"
    assert "set the input `allranks`" in annotation["message"]


def test_no_workflow_names_a_package_by_itself():
    for name in ("dist", "images"):
        call = read_workflow(DIST.with_stem(name))["on"]["workflow_call"]
        assert call["inputs"]["allranks"]["default"] == ""


def test_wheels_are_those_of_the_oldest_python_that_allranks_runs_on():
    requires = tomllib.loads((DIST.parents[2] / "pyproject.toml").read_text())["project"]["requires-python"]
    [lock] = [step for step in read_workflow(DIST)["jobs"]["plan"]["steps"] if step.get("id") == "lock"]
    assert f" --python-version {requires.removeprefix('>=')} " in lock["run"]

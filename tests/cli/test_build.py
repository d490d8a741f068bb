"""``allranks build``, and runs with exported images, without a daemon."""

import json

import pytest

from allranks.cli.main import main

MATRIX = """\
[matrix]
backend = ["gloo"]
world_size = [2]
gpu_count = [0, 2]

[suites.tiny]
path = "suite"

[images.cpu]
when = "gpu_count == 0"
image = "registry.example/cpu:1"

[images.cuda]
when = "gpu_count > 0"
image = "registry.example/cuda:1"

[[runners]]
labels = ["own"]
gpus = 2
"""


@pytest.fixture
def repository(tmp_path, monkeypatch):
    (tmp_path / "suite").mkdir()
    (tmp_path / "matrix.toml").write_text(MATRIX)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("plan_file", "options", "message"),
    [
        ("", ["--push"], "--push needs --registry"),
        ("", ["--results", "r"], "--results needs ALLRANKS_PLAN_FILE"),
        ("", ["--registry", "ghcr.io/o/r"], "other machines read the names of the images"),
        ("plan.json", ["--where", "backend=gloo"], "already selects cells and suites"),
        ("none.json", [], "none.json cannot be read"),
    ],
)
def test_options_that_contradict_each_other_are_usage_errors(plan_file, options, message, capsys, monkeypatch):
    monkeypatch.setenv("ALLRANKS_PLAN_FILE", plan_file)
    assert main(["build", "--engine", "process", *options]) == 2
    assert message in capsys.readouterr().err


def test_the_process_engine_exports_no_images(repository, capsys):
    assert main(["build", "--engine", "process", "--export", "images"]) == 0
    assert "engine: process (requested), which uses no images" in capsys.readouterr().out
    assert json.loads((repository / "images" / "images.json").read_text())["images"] == []


@pytest.mark.usefixtures("repository")
def test_a_failed_build_is_the_result_of_each_job_of_the_plan(capsys, monkeypatch):
    assert main(["plan", "--format", "github", "--plan-file", "plan.json"]) == 0
    monkeypatch.setenv("ALLRANKS_PLAN_FILE", "plan.json")
    assert main(["build", "--results", "r", "--engine", "process", "--push"]) == 2
    capsys.readouterr()
    assert main(["report", "r/latest"]) == 2
    out = capsys.readouterr().out
    assert "--push needs --registry." in out
    assert "(2 tests in 2 cells; batches cpu-g0-1of1, cuda-g2-1of1)" in out


@pytest.mark.docker
def test_the_images_of_a_plan_are_those_of_its_jobs(repository, capsys, monkeypatch):
    assert main(["plan", "--format", "github", "--plan-file", "plan.json"]) == 0
    monkeypatch.setenv("ALLRANKS_PLAN_FILE", "plan.json")
    capsys.readouterr()
    assert main(["build", "--dry-run"]) == 0
    assert capsys.readouterr().out == "cpu registry.example/cpu:1\ncuda registry.example/cuda:1\n"
    assert main(["build", "--without-gpus", "--export", "images"]) == 0
    assert [image["name"] for image in json.loads((repository / "images" / "images.json").read_text())["images"]] == [
        "cpu"
    ]

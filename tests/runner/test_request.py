import json
from dataclasses import replace
from pathlib import Path

import pytest

from allranks.engines.base import LISTS, FileCopy, JobEnvironment, Passthrough
from allranks.runner.request import AttemptOptions, files_of, job_spec, lists_of

ATTEMPT = AttemptOptions(run_id="r", number=2, seed=5, gpus=("GPU-a", "GPU-b"), pytest_args=("-k", "x"))


@pytest.fixture
def spec(matrix, jobs):
    environment = JobEnvironment(image="ref", python="/py", python_path=(Path("/project"),))
    return job_spec(matrix, jobs["nccl-w2-g2-env"], environment, ATTEMPT)


def test_request_names_run_job_and_attempt(spec):
    assert (spec.run_id, spec.job_id, spec.attempt) == ("r", "nccl-w2-g2-env/tiny", 2)


def test_a_request_has_the_python_of_its_environment(spec):
    assert (spec.image, spec.python, spec.python_path) == ("ref", "/py", (Path("/project"),))


def test_request_has_the_gpus_of_the_lease_and_the_variables_of_the_cell(spec):
    assert spec.gpus == ("GPU-a", "GPU-b")
    assert spec.environment == {"NCCL_DEBUG": "WARN"}


def test_an_agents_config_has_the_cell_and_the_limits(spec):
    agent = spec.agent
    assert (agent.backend, agent.world_size, agent.gpu_count, agent.init_method) == ("nccl", 2, 2, "env")
    assert (agent.limits.process_group, agent.limits.test, agent.limits.job) == (10, 20, 30)
    assert (agent.isolation, agent.overlap, agent.seed) == ("file", 1, 5)


@pytest.mark.parametrize(
    ("of_image", "of_cell", "expected"),
    [
        ("2.99.0", "", "2.99.0"),
        ("2.13.0+cu126", "2.13.0", "2.13.0+cu126"),
        ("2.13", "2.13.0", "2.13"),
        ("", "2.14.1", "2.14.1"),
        ("", "", ""),
    ],
)
def test_an_agents_config_has_the_torch_of_the_matrix(matrix, jobs, of_image, of_cell, expected):
    job = jobs["nccl-w2-g2-env"]
    job = replace(job, cell=replace(job.cell, torch=of_cell))
    assert job_spec(matrix, job, JobEnvironment(torch=of_image), ATTEMPT).agent.torch == expected


def test_arguments_of_the_suite_come_before_those_of_the_run(spec):
    assert spec.agent.pytest_args == ("--strict-markers", "-k", "x")


def test_memory_and_time_of_the_file_reach_the_engine(spec):
    assert spec.resources.memory_bytes == 777 << 20
    assert spec.resources.seconds == 30 + 23


def test_request_can_be_printed(spec):
    assert json.loads(json.dumps(spec.to_json()))["agent"]["paths"] == ["suite"]


def test_a_request_has_the_keys_of_its_suite(spec, repository):
    assert [copy.target for copy in spec.files] == [Path("suite"), Path("data")]
    assert spec.code == repository


def test_every_path_of_a_suite_is_copied_and_ignored_paths_are_in_the_config(matrix, jobs):
    job = jobs["nccl-w2-g2-env"]
    suite = replace(job.suite, paths=(Path("suite"), Path("data")), ignored=(Path("suite/slow"),), files=())
    spec = job_spec(matrix, replace(job, suite=suite), JobEnvironment(), ATTEMPT)
    assert [copy.target for copy in spec.files] == [Path("suite"), Path("data")]
    assert (spec.agent.paths, spec.agent.ignored) == (("suite", "data"), ("suite/slow",))


def test_a_suite_with_its_own_home_has_its_files_and_import_paths(matrix, jobs, tmp_path):
    job = jobs["nccl-w2-g2-env"]
    (tmp_path / "pytest.ini").touch()
    suite = replace(job.suite, home=tmp_path, paths=(Path("kit"),), files=(), python_path=(Path("/backend"),))
    spec = job_spec(matrix, replace(job, suite=suite), JobEnvironment(python_path=(Path("/project"),)), ATTEMPT)
    assert spec.code == tmp_path
    assert [copy.source for copy in spec.files] == [tmp_path / "pytest.ini", tmp_path / "kit"]
    assert spec.python_path == (Path("/project"), Path("/backend"))


def test_configuration_files_of_parent_folders_are_copied_too(tmp_path):
    for name in ("pyproject.toml", "conftest.py", "a/conftest.py", "a/__init__.py", "a/b/test_x.py", "c/conftest.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    copies = list(files_of(tmp_path, (Path("a/b"),), tmp_path))
    assert {str(copy.target) for copy in copies} == {
        "pyproject.toml", "conftest.py", "a/conftest.py", "a/__init__.py", "a/b",
    }  # fmt: skip
    assert all(copy.source == tmp_path / copy.target for copy in copies)


def test_a_suite_that_is_one_file_is_copied_as_one(tmp_path):
    (tmp_path / "test_x.py").touch()
    assert [copy.target for copy in files_of(tmp_path, (Path("test_x.py"),), tmp_path)] == [Path("test_x.py")]


def test_lists_of_disabled_and_slow_tests_are_copied(tmp_path, matrix, jobs, monkeypatch):
    (tmp_path / "list.json").touch()
    copy = FileCopy(source=tmp_path / "list.json", target=LISTS / "DISABLED_TESTS_FILE")
    variables = {"DISABLED_TESTS_FILE": f"{tmp_path}/list.json", "SLOW_TESTS_FILE": f"{tmp_path}/none.json"}
    assert list(lists_of(variables, tmp_path / "repository")) == [copy]
    assert list(lists_of({"DISABLED_TESTS_FILE": ""}, tmp_path)) == []
    monkeypatch.setenv("DISABLED_TESTS_FILE", f"{tmp_path}/list.json")
    assert copy in job_spec(matrix, jobs["nccl-w2-g2-env"], JobEnvironment(image="i"), ATTEMPT).files


@pytest.mark.parametrize(
    ("where", "passthrough", "visible"),
    [
        (JobEnvironment(python="python"), Passthrough(), ["GPU-a", "x"]),
        (JobEnvironment(image="i"), Passthrough(), ["GPU-a", "1"]),
        (JobEnvironment(python="python"), Passthrough(driver="rocm", numbers=(4, 6)), ["4", "6"]),
        (JobEnvironment(image="i"), Passthrough(driver="rocm", numbers=(4, 6)), ["0", "1"]),
    ],
)
def test_unchecked_gpus_are_checked(matrix, jobs, where, passthrough, visible):
    attempt = AttemptOptions(run_id="r", number=1, seed=1, gpus=("GPU-a", "x"), passthrough=passthrough)
    job = jobs["nccl-w2-g2-env"]
    before = job_spec(matrix, job, where, attempt)
    spec = job_spec(matrix, job, where, replace(attempt, gpus_to_check={"GPU-a": "GPU 0", "x": "GPU 1"}))
    assert [gpu.visible for gpu in spec.agent.check_gpus] == visible
    assert [gpu.name for gpu in spec.agent.check_gpus] == ["GPU 0", "GPU 1"]
    assert before.agent.check_gpus == ()
    assert spec.resources.seconds > before.resources.seconds + 59

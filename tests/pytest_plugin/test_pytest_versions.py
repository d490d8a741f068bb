"""``pytest --ranks`` and a job, with the oldest supported and the newest pytest."""

import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

import allranks
from allranks.images.recipe import PYTEST

COLLECTIVES = Path(__file__).parents[2] / "suites" / "collectives"
OLDEST = f"{PYTEST.replace('>=', '==')}.0.0"

SUITE = """
import pytest
import torch
import torch.distributed as dist

@pytest.fixture
def ones(world_size):
    return torch.ones(world_size)

@pytest.mark.parametrize("number", [1, 2])
def test_sum(process_group, rank, world_size, ones, number):
    assert pytest.__version__ == "{version}"
    tensor = ones * rank
    dist.all_reduce(tensor)
    assert tensor[0].item() == sum(range(world_size))

def test_fails_on_one(rank):
    assert rank == 0, "only the second"

def test_skips(rank):
    pytest.skip("not today")

@pytest.mark.xfail(reason="known")
def test_expected(rank):
    assert rank < 0
"""

MATRIX = """
[matrix]
backend = ["gloo"]
world_size = [2]

[suites.tests]
path = "test_it.py"

[process]
python = "{python}"

[images.cpu]
torch = "2.13.0"
"""


@pytest.fixture(scope="module", params=[OLDEST, "pytest"], ids=["oldest", "newest"])
def pytest_folder(request, tmp_path_factory):
    """A folder with this version of pytest and its dependencies, to be put first in ``PYTHONPATH``."""
    folder = tmp_path_factory.mktemp("pytest")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, request.param]
    done = subprocess.run(install, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def started(pytest_folder, environment_without_ranks, tmp_path):
    """``started("-m", "pytest", ...)``: runs Python in the folder of a suite; returns its exit status and output."""
    (version,) = (found.version for found in distributions(path=[str(pytest_folder)]) if found.name == "pytest")
    (tmp_path / "test_it.py").write_text(SUITE.format(version=version))
    (tmp_path / "matrix.toml").write_text(MATRIX.format(python=sys.executable))
    path = os.pathsep.join(filter(None, (str(pytest_folder), os.environ.get("PYTHONPATH", ""))))
    environment = {**environment_without_ranks, "TMPDIR": str(tmp_path), "PYTHONPATH": path}

    def run(*arguments):
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.mark.index
def test_a_session_with_ranks_reports_each_outcome(started):
    status, output = started("-m", "pytest", "-p", "no:hypothesispytest", "--ranks=2", "--junit-xml=out.xml")
    assert status == 1, output
    assert "1 failed, 2 passed, 1 skipped, 1 xfailed" in output
    assert "rank 1 failed: AssertionError: only the second" in output
    assert "INTERNALERROR" not in output


@pytest.mark.index
def test_a_job_reports_each_outcome(started):
    status, output = started("-m", "allranks", "run", "--engine", "process")
    assert status == 1, output
    assert "rank 1 failed: AssertionError: only the second" in output
    assert "exit code 1: tests failed" in output
    table = next(line.split() for line in output.splitlines() if line.startswith("gloo-w2-g0-env  "))
    assert table[2:7] == ["5", "2", "1", "0", "2"], "tests, passed, failed, errors, skipped"


@pytest.mark.index
def test_the_suite_of_collectives_passes(started):
    status, output = started("-m", "pytest", "-p", "no:hypothesispytest", "--ranks=2", "-q", str(COLLECTIVES))
    assert status == 0, output
    assert int(re.search(r"(\d+) passed", output)[1]) > 300


def modules():
    names = (module.name for module in pkgutil.walk_packages(allranks.__path__, "allranks."))
    return [importlib.import_module(name) for name in names if not name.endswith("__main__")]


def test_every_plugin_is_hashable():
    """Older versions of pytest keep every registered object in a set."""
    plugins = {
        plugin
        for module in modules()
        for plugin in vars(module).values()
        if inspect.isclass(plugin)
        and plugin.__module__ == module.__name__
        and any(inspect.isfunction(getattr(plugin, name)) for name in dir(plugin) if name.startswith("pytest_"))
    }
    assert len(plugins) > 5
    assert [plugin.__name__ for plugin in plugins if plugin.__hash__ is None] == []

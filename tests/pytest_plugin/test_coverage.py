"""``pytest --ranks N --cov``: the coverage of all ranks is combined and checked."""

import json
import os
import subprocess
import sys

import pytest

FILES = {
    "measured.py": """
def of_rank(rank):
    if rank == 0:
        return "zero"
    return "one"
""",
    "test_it.py": """
import measured
def test_each(rank):
    assert measured.of_rank(rank)
""",
}
COV = ("-p", "pytest_cov", "--cov=measured", "--cov-report=json")


@pytest.fixture
def measure(tmp_path, plugins):
    """``measure(*command)``: runs pytest with this command; returns its exit status, its output, and the report."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)

    def run(*command):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([plugins, *sys.path])}
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        report = json.loads((tmp_path / "coverage.json").read_text())
        return done.returncode, done.stdout + done.stderr, report["files"]["measured.py"]

    return run


@pytest.mark.thorough
def test_coverage_of_all_ranks_is_combined_and_checked(measure, tmp_path):
    status, output, of_ranks = measure("pytest", "--ranks=2", *COV, "--cov-fail-under=100")
    assert status == 0, output
    assert of_ranks["summary"]["percent_covered"] == 100.0
    assert sorted(path.name for path in tmp_path.glob(".coverage*")) == [".coverage"]
    status, output, of_one = measure("pytest", "--ranks=1", *COV, "--cov-fail-under=100")
    assert status == 1
    assert of_one["missing_lines"] == [5]


@pytest.mark.thorough
def test_coverage_is_the_same_as_under_torchrun(measure, tmp_path):
    status, output, of_ranks = measure("pytest", "--ranks=2", *COV)
    assert status == 0, output
    (tmp_path / ".coverage").unlink()
    torchrun = ("torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m")
    measured = ("coverage", "run", "--parallel-mode", "--source=measured")
    measure(*torchrun, *measured, "-m", "pytest")
    measure("coverage", "combine")
    status, output, of_torchrun = measure("coverage", "json")
    assert status == 0, output
    assert of_torchrun["executed_lines"] == of_ranks["executed_lines"] == [2, 3, 4, 5]

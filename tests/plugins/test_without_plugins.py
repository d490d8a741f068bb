"""allranks without some of its plug-ins, or without the folder that they are in: the core works, and lacks theirs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from long_lists import quick

from allranks.engines.package import package_folder

MATRIX = f"""
[matrix]
backend = ["gloo"]
world_size = [2]

[suites.tests]
path = "tests"

[images.cpu]
torch = "2.13.0"

[process]
python = {sys.executable!r}
"""
RANK = '<testsuite><testcase classname="t" name="x"/></testsuite>'
NAMES = ("stress", "history", "conformance")


@pytest.fixture(params=quick(1, ["all", *NAMES]))
def lacking(request, tmp_path):
    """The names of the plug-ins that are deleted from a copy of the package."""
    copy = shutil.copytree(
        package_folder(), tmp_path / "copy" / "allranks", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.rmtree(copy / "plugins" if request.param == "all" else copy / "plugins" / request.param)
    return NAMES if request.param == "all" else (request.param,)


@pytest.fixture
def shell(tmp_path, lacking, environment_without_ranks):  # noqa: ARG001 - the copy is what runs
    """Run a command of the copy: its exit code and output."""
    variables = {**environment_without_ranks, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    variables["PYTHONPATH"] = os.pathsep.join([str(tmp_path / "copy"), *filter(None, [variables.get("PYTHONPATH")])])

    def run(*arguments):
        command = [sys.executable, "-m", "allranks", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=variables, check=False, timeout=300, capture_output=True, text=True
        )
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout + done.stderr

    return run


def test_the_help_has_no_command_and_no_option_of_theirs(shell, lacking):
    code, out = shell("--help")
    listed = {line.split()[0] for line in out.partition("commands:")[2].splitlines() if line.startswith("  ")}
    assert code == 0
    assert {"run", "report", "plan"} <= listed
    assert listed & set(NAMES) == set(NAMES) - set(lacking)
    code, out = shell("report", "--help")
    assert (code, "--history" in out) == (0, "history" not in lacking)


def test_results_are_merged(shell, lacking, tmp_path):
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "rank-0.xml").write_text(RANK)
    code, out = shell("report", "ranks", "--world-size", "1")
    assert (code, "exit code 0" in out) == (0, True)
    report = json.loads((tmp_path / "ranks" / "report.json").read_text())
    assert report["counts"]["passed"] == 1
    code, out = shell("report", "ranks", "--world-size", "1", "--history", "h.sqlite")
    assert (code, "history" in json.loads((tmp_path / "ranks" / "report.json").read_text())) == (
        (2, False) if "history" in lacking else (0, True)
    )


def test_a_table_of_theirs_is_unknown(shell, lacking, tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "matrix.toml").write_text(f"{MATRIX}\n[history]\n")
    code, out = shell("plan")
    assert (code, "matrix.toml:15: history: there is no such key." in out) == (
        (2, True) if "history" in lacking else (0, False)
    )


@pytest.mark.parametrize("lacking", ["all"], indirect=True)
def test_a_suite_is_run(shell, tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text("def test_it(rank):\n    assert rank < 2\n")
    (tmp_path / "matrix.toml").write_text(MATRIX)
    code, out = shell("run", "--engine", "process")
    assert code == 0, out
    [job] = json.loads(Path(tmp_path, "results/latest/report.json").read_text())["suites"]
    assert job["counts"]["passed"] == 1

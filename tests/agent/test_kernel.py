"""Kernels that lack a feature, simulated by a filter of system calls or a smaller ``/proc``."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from long_lists import quick
from without_feature import FEATURES

from allranks.agent import kernel

ON_A_POORER_KERNEL = Path(__file__).with_name("without_feature.py")

IN_PROC = {
    "/proc/PID/stat": "stat",
    "/proc/PID/environ": "environ",
    "/proc/PID/task/TID/children": "task",
    "signal sets of /proc/PID/status": "status",
    "/proc/PID/wchan": "wchan",
}
OPTIONAL = tuple(IN_PROC)[2:]


def without(feature, *command, **options):
    return subprocess.run(
        [sys.executable, ON_A_POORER_KERNEL, feature, sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def test_this_kernel_is_accepted():
    found = kernel.check()
    assert found.refusal == ""
    assert {feature.name for feature in found.found} >= {*FEATURES, "/proc/PID/stat", "/proc/PID/environ"}
    assert found.summary.startswith(f"Linux {os.uname().release} has pidfd, ")


@pytest.mark.parametrize("feature", quick(1, FEATURES))
def test_a_missing_feature_is_found_and_rejected(feature):
    code = "from allranks.agent import kernel; found = kernel.check(); print(found.summary); print(found.refusal)"
    done = without(feature, "-c", code)
    summary, refusal = done.stdout.splitlines()
    assert f"; {feature} is missing: allranks needs it to " in summary
    assert refusal.startswith(f"This kernel (Linux {os.uname().release}) lacks {feature} (to ")


@pytest.fixture
def proc(tmp_path):
    """A copy of ``/proc`` with only this process."""
    for name in ("stat", "environ", "status", "wchan"):
        (tmp_path / "self").mkdir(exist_ok=True)
        (tmp_path / "self" / name).write_bytes(Path("/proc/self", name).read_bytes())
    (tmp_path / "self/task/1").mkdir(parents=True)
    (tmp_path / "self/task/1/children").touch()
    return tmp_path


@pytest.mark.parametrize("feature", IN_PROC)
def test_a_missing_file_in_proc_is_rejected_unless_optional(proc, feature):
    path = proc / "self" / IN_PROC[feature]
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    found = kernel.check(proc)
    assert [feature.name for feature in found.missing] == [feature]
    assert bool(found.refusal) == (feature not in OPTIONAL)
    assert f"{feature} is missing: " in found.summary


def test_unexpected_fields_count_as_missing(proc):
    stat = (proc / "self/stat").read_text()
    (proc / "self/stat").write_text(stat.replace(f" {os.getppid()} ", " 77 ", 1))
    (proc / "self/status").write_text("Name:\tpython\n")
    missing = [feature.name for feature in kernel.check(proc).missing]
    assert missing == ["/proc/PID/stat", "signal sets of /proc/PID/status"]


@pytest.mark.parametrize("feature", quick(1, FEATURES))
def test_a_run_is_rejected_before_it_starts(repository, feature):
    done = without(feature, "-m", "allranks", "run", "--engine", "process", cwd=repository)
    first, remedy = done.stderr.splitlines()
    assert first.startswith("allranks: error: This kernel (Linux ")
    assert f") lacks {feature} (to " in first
    assert remedy.strip() == kernel.REMEDY
    assert done.returncode == 4
    assert not (repository / "results").exists()


MATRIX = """
[matrix]
backend = ["gloo"]
world_size = [2]
gpu_count = [0]
init_method = ["env"]

[suites.s]
path = "suite"

[images.any]
torch = "2.13.0"

[process]
python = "./python"
"""


@pytest.mark.parametrize("feature", quick(1, FEATURES))
def test_an_agent_fails_without_blaming_a_test(repository, allranks, feature):
    (repository / "matrix.toml").write_text(MATRIX)
    command = shlex.join([sys.executable, str(ON_A_POORER_KERNEL), feature, sys.executable])
    (repository / "python").write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    (repository / "python").chmod(0o755)
    code, _, errors = allranks("run", "--engine", "process")
    report = (repository / "results/latest/junit.xml").read_text()
    assert f") lacks {feature} (to " in report
    assert kernel.REMEDY in report
    assert "Traceback" not in report + errors
    assert code == 4


@pytest.mark.thorough
def test_pytest_with_ranks_is_rejected(tmp_path):
    (tmp_path / "test_a.py").write_text("def test_a(rank): pass\n")
    done = without("pidfd", "-m", "pytest", "-p", "no:cacheprovider", "--ranks", "2", cwd=tmp_path)
    assert "lacks pidfd (to wait for the end of a process)" in done.stdout
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.thorough
def test_the_doctor_names_what_is_missing(tmp_path):
    done = without("memfd", "-m", "allranks", "doctor", "--engine", "process", cwd=tmp_path)
    [line] = [line for line in done.stdout.splitlines() if "kernel:" in line]
    assert line.startswith("PROBLEM  kernel: Linux ")
    assert "memfd is missing: allranks needs it to share memory with a rank" in line
    assert done.returncode == 4

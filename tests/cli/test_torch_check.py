"""What the doctor finds in the Python that runs jobs."""

import sys

import pytest

from allranks.cli.torch_check import check_torch


def found(python, **options):
    """The findings by subject, each with its text and its remedy."""
    return {finding.subject: finding[1:3] for finding in check_torch(str(python), **{"runs_jobs": True, **options})}


@pytest.fixture
def python_with(tmp_path):
    """``python_with(torch)``: an interpreter whose torch has this source."""

    def make(torch):
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch" / "__init__.py").write_text(torch)
        command = tmp_path / "python"
        command.write_text(f"#!/bin/sh\nPYTHONPATH='{tmp_path}' exec '{sys.executable}' \"$@\"\n")
        command.chmod(0o755)
        return command

    return make


def test_two_ranks_communicate_over_gloo():
    results = found(sys.executable, limit=60.0)
    assert results["torch"] == (pytest.importorskip("torch").__version__, "")
    text, remedy = results["gloo"]
    assert text.startswith("two ranks completed an all_reduce in ")
    assert not remedy


def test_a_python_without_torch_is_a_problem_only_if_jobs_run_in_it(python_with):
    python = python_with("raise ImportError('libcudart.so.12 is missing')")
    text, remedy = found(python)["torch"]
    assert text == "it cannot be imported: ImportError: libcudart.so.12 is missing"
    assert remedy == f"Install it: {python} -m pip install torch"
    text, remedy = found(python, runs_jobs=False)["torch"]
    assert not remedy


def test_an_import_that_takes_long_is_no_problem(python_with):
    text, remedy = found(python_with("import time; time.sleep(60)"), limit=1.0)["torch"]
    assert text.startswith("its import took more than 1 s")
    assert not remedy


DISTRIBUTED = """
import sys, types
__version__ = "9.9"
distributed = types.ModuleType("torch.distributed")
sys.modules["torch.distributed"] = distributed
distributed.is_available = distributed.is_gloo_available = lambda: True
"""


@pytest.mark.parametrize(
    ("init", "text"),
    [
        ("import time; time.sleep(60)", "an all_reduce of two ranks did not end within 2 s"),
        ("raise RuntimeError('no interface')", "two ranks cannot communicate: RuntimeError: no interface"),
        ("import os; os._exit(0)", "an all_reduce of two ranks ended without a result"),
    ],
)
def test_ranks_that_cannot_communicate_are_a_problem(python_with, init, text):
    source = f"{DISTRIBUTED}def _init(*args, **more):\n    {init}\ndistributed.init_process_group = _init\n"
    result, remedy = found(python_with(source), limit=2.0)["gloo"]
    assert result == text
    assert "GLOO_SOCKET_IFNAME" in remedy


def test_an_interpreter_that_does_not_start_is_a_problem(tmp_path):
    text, remedy = found(tmp_path / "absent")["Python"]
    assert "does not start" in text
    assert remedy == "Correct process.python in the matrix file."

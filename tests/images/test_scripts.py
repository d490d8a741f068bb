"""The error messages of the scripts; tests/e2e and .ci/run test that they work."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


def run(script, *arguments, **environ):
    return subprocess.run(
        [script, *arguments], capture_output=True, text=True, check=False, env={**os.environ, **environ}
    )


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPTS / "nox", tmp_path / "scripts/nox")
    return tmp_path


def interpreter(path, script):
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("script", ["nox", "docker-engine", "base-image", "slurm-cluster"])
def test_the_scripts_are_posix_shell(script):
    assert run("sh", "-n", str(SCRIPTS / script)).returncode == 0


def test_nox_with_an_old_python_is_an_error_with_a_remedy(checkout, tmp_path):
    old = interpreter(tmp_path / "old python", "exit 1")
    result = run(checkout / "scripts/nox", PYTHON=old)
    assert result.returncode == 2
    assert "It needs 3.11 or newer, and looked for: " + old in result.stderr
    assert result.stdout == ""


def test_nox_without_the_venv_module_is_an_error_with_a_remedy(checkout, tmp_path):
    bare = interpreter(
        tmp_path / "bare", f'case "$2" in *ensurepip*) exit 1 ;; esac\nexec {shlex.quote(sys.executable)} "$@"'
    )
    result = run(checkout / "scripts/nox", PYTHON=bare)
    assert result.returncode == 2
    assert "apt install python3-venv" in result.stderr


@pytest.mark.thorough
def test_nox_leaves_no_environment_when_its_install_fails(checkout):
    nowhere = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
    result = run(checkout / "scripts/nox", PYTHON=sys.executable, **nowhere)
    assert result.returncode == 2
    assert "Installing nox" in result.stderr
    assert list((checkout / ".nox").iterdir()) == []


def test_nox_gives_its_arguments_and_the_checkouts_noxfile_to_nox(checkout, tmp_path):
    environment = checkout / ".nox/wrapper-2026.10.20/bin"
    environment.mkdir(parents=True)
    interpreter(environment / "python", 'printf "<%s>" "$@"')
    result = run(checkout / "scripts/nox", "-s", "dist(backend='gloo', world_size=2)", PYTHON="")
    assert result.stdout == f"<-P><-m><nox><--noxfile><{tmp_path}/noxfile.py><-s><dist(backend='gloo', world_size=2)>"


@pytest.mark.parametrize("script", ["docker-engine", "base-image", "slurm-cluster"])
def test_a_wrong_argument_is_a_usage_error_that_repeats_it(script):
    result = run(SCRIPTS / script, "frobnicate")
    assert result.returncode == 2
    assert "'frobnicate'" in result.stderr


@pytest.mark.parametrize("script", ["docker-engine", "base-image", "slurm-cluster"])
def test_help_is_the_head_of_the_script(script):
    result = run(SCRIPTS / script, "--help")
    assert result.returncode == 0
    assert f"scripts/{script}" in result.stdout


@pytest.mark.parametrize(
    ("script", "text"), [("docker-engine", "Docker engine 99 answers already"), ("base-image", "is there already")]
)
def test_a_second_run_does_nothing(script, text, tmp_path):
    interpreter(tmp_path / "docker", "echo 99")
    result = run(SCRIPTS / script, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert result.returncode == 0
    assert text in result.stdout

"""A user's repository: allranks as a wheel, nox installed one way or the other, a noxfile of three lines."""

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SUITE = """
import torch
import torch.distributed as dist


def test_ranks_add_up():
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == dist.get_world_size()
"""

NOXFILE = "from allranks.nox import register\n\nregister()\n"

SCRIPT_METADATA = '# /// script\n# dependencies = ["nox", "allranks @ {}"]\n# ///\n'

SIGNATURE = "dist(backend='gloo', world_size=2)"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """A folder with the wheel of this working tree."""
    folder = tmp_path_factory.mktemp("wheels")
    options = [
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(folder),
    ]  # what builds it is installed
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(ROOT)], check=True)
    return folder


@pytest.fixture
def repository(scratch, run_id, tmp_path, monkeypatch):
    """A repository whose sessions belong to the test's run, on a host that has never seen allranks."""
    monkeypatch.setenv("ALLRANKS_RUN_ID", run_id)
    monkeypatch.setenv("ALLRANKS_ENGINE", "process")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # pip's own cache stays: only what allranks keeps is to be fresh.
    monkeypatch.setenv("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return scratch(SUITE)


def run_session(nox, repository):
    command = [*nox, "-s", SIGNATURE]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=300, check=False)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert "exit code 0: no test failed" in output
    assert (repository / "results" / "latest" / "junit.xml").exists()


@pytest.mark.index
def test_sessions_run_where_allranks_is_installed_beside_nox(wheels, repository, tmp_path):
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "nox", *wheels.iterdir()], check=True)
    (repository / "noxfile.py").write_text(NOXFILE)
    run_session([str(environment / "bin" / "nox")], repository)
    shadows = [path.name for path in (tmp_path / "cache" / "allranks" / "package").glob("*/*")]
    assert shadows == ["allranks"]


@pytest.mark.index
def test_sessions_run_where_nox_installs_allranks_by_script_metadata(wheels, repository, monkeypatch):
    [wheel] = wheels.iterdir()
    monkeypatch.setenv("NOX_SCRIPT_VENV_BACKEND", "virtualenv")
    (repository / "noxfile.py").write_text(SCRIPT_METADATA.format(wheel.as_uri()) + NOXFILE)
    run_session([sys.executable, "-m", "nox"], repository)


@pytest.mark.thorough
def test_the_wheel_has_what_jobs_and_images_need(wheels):
    [wheel] = wheels.iterdir()
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {"allranks/py.typed", "allranks/agent/__main__.py", "allranks/images/Dockerfile.cuda"} <= names
    assert not [name for name in names if name.startswith(("tests/", "suites/")) or "__pycache__" in name]

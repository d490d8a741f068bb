"""Hosts without packages that the process engine can do without: Docker's SDK, rich, junitparser, NVML's bindings."""

import os
import pty
import subprocess
import sys
from contextlib import suppress

import pytest

UNIMPORTABLE = """
import sys

for name in ("docker", "rich", "pynvml", "requests", "junitparser"):
    sys.modules[name] = None
"""

MATRIX = """
[matrix]
backend = ["gloo"]
world_size = [2]

[suites.tiny]
path = "suite"

[images.cpu]
torch = "2.13.0"

[process]
python = {python!r}
"""


@pytest.fixture
def bare_host(tmp_path, monkeypatch):
    """A repository whose commands find none of these packages."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sitecustomize.py").write_text(UNIMPORTABLE)
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "test_tiny.py").write_text("def test_tiny():\n    pass\n")
    (tmp_path / "matrix.toml").write_text(MATRIX.format(python=sys.executable))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"), prepend=os.pathsep)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.chdir(tmp_path)


@pytest.mark.thorough
@pytest.mark.usefixtures("bare_host")
def test_a_run_on_a_terminal_does_without_docker_rich_and_nvml():
    status, output = on_a_terminal("run", "--engine", "process", "--seed", "7")
    assert "gloo-w2-g0-env/tiny: 1 passed" in output
    assert status == 0, output


@pytest.mark.thorough
@pytest.mark.usefixtures("bare_host")
def test_the_doctor_names_what_is_not_installed(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    _, output = on_a_terminal("doctor")
    assert "pip install docker" in output
    assert "Traceback" not in output


def on_a_terminal(*arguments):
    """Exit status and output of a command whose standard output is a terminal."""
    leader, follower = pty.openpty()
    with subprocess.Popen([sys.executable, "-m", "allranks", *arguments], stdout=follower, stderr=follower) as command:
        os.close(follower)
        output = b""
        with suppress(OSError):  # Linux ends a terminal without writers by EIO
            while data := os.read(leader, 1 << 16):
                output += data
    os.close(leader)
    return command.returncode, output.decode()

"""The output of commands into terminals, pipes and closed streams."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from long_lists import quick

from allranks.colors import painted


def test_a_closed_pipe_is_not_an_error():
    """Like ``allranks plan | head -1``."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "allranks", "plan"]
    with os.fdopen(writing, "wb") as closed:
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_disk_loses_only_the_output():
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "allranks", "plan"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("environ", "has_colour"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": ""}, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({"NO_COLOR": ""}, False),
    ],
    ids=str,
)
def test_colors_in_a_pipe_depend_on_the_environment(allranks, runs, monkeypatch, environ, has_colour):
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    _, out, _ = allranks("run")
    _, _, err = allranks("run", "nope")
    assert out == ("\x1b[1;32mexit code 0: no test failed\x1b[0m\n" if has_colour else "exit code 0: no test failed\n")
    assert err.startswith("\x1b[1;31mallranks: error:\x1b[0m There" if has_colour else "allranks: error: There")
    assert len(runs) == 1


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_terminal_shows_colors_if_it_can(monkeypatch, term):
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", term)
    terminal = SimpleNamespace(isatty=lambda: True)
    assert painted("x", "red", terminal) == ("x" if term == "dumb" else "\x1b[1;31mx\x1b[0m")
    monkeypatch.setenv("NO_COLOR", "1")
    assert painted("x", "red", terminal) == "x"


@pytest.mark.parametrize("closed", quick(1, ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"]))
def test_a_closed_stream_is_not_an_error(closed):
    shell = ["sh", "-c", f"exec {shlex.quote(sys.executable)} -m allranks plan {closed}"]
    done = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == (">&-" not in closed.split() or closed == "2>&-")

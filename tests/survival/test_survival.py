"""A run that something befalls keeps its results and leaves nothing behind; `nox -s survival` has all of it.

Each test is one moment of the soak, in a world of its own (see world.py): nobody else's run notices.
"""

import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).with_name("soak.py")

pytestmark = [pytest.mark.alone, pytest.mark.root]


def befall(*arguments):
    command = [sys.executable, str(SOAK), "1", *arguments, "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "none of them wrong" in done.stdout
    assert "over before" not in done.stdout


def test_on_the_host_a_full_disk_loses_nothing_that_was_written():
    befall("full-disk@failure", "--engine", "process")


@pytest.mark.docker
def test_in_containers_a_killed_run_keeps_what_it_had_found_and_leaves_nothing():
    befall("sigkill@failure", "--engine", "docker", "--host-daemon")

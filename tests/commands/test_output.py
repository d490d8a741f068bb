"""What commands print, whoever reads it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def test_a_reader_that_leaves_early_breaks_nothing():
    """As in ``allranks plan | head -1``."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "allranks", "plan"]
    with os.fdopen(writing, "wb") as closed:
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_disk_takes_what_is_printed_and_nothing_else():
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "allranks", "plan"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_breaks_nothing(closed):
    shell = ["sh", "-c", f"exec {sys.executable} -m allranks plan {closed}"]
    done = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == (">&-" not in closed.split() or closed == "2>&-")

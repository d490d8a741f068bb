"""What commands print, whoever reads it."""

import os
import subprocess
import sys


def test_a_reader_that_leaves_early_breaks_nothing():
    """As in ``allranks plan | head -1``."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "allranks", "plan"]
    with os.fdopen(writing, "wb") as closed:
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")

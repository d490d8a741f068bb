"""The generated files are up to date; each script prints the command that writes its file again."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.parametrize("name", ["matrix-keys", "command-line", "user-messages"])
def test_a_generated_file_is_up_to_date(name):
    command = [sys.executable, SCRIPTS / name, "--check"]
    checked = subprocess.run(command, check=False, timeout=60, capture_output=True, text=True)
    assert (checked.returncode, checked.stdout) == (0, "")

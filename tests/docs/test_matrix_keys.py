"""docs/matrix-keys.md is what the declarations of the keys say."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_reference_of_the_matrix_file_is_up_to_date():
    command = [sys.executable, ROOT / "scripts" / "matrix-keys", "--check"]
    checked = subprocess.run(command, check=False, timeout=60, capture_output=True, text=True)
    assert (checked.returncode, checked.stdout) == (0, "")

"""The generated files are up to date; each script prints the command that writes its file again."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from blocks import blocks

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.parametrize("name", ["matrix-keys", "command-line", "user-messages"])
def test_a_generated_file_is_up_to_date(name):
    command = [sys.executable, SCRIPTS / name, "--check"]
    checked = subprocess.run(command, check=False, timeout=60, capture_output=True, text=True)
    assert (checked.returncode, checked.stdout) == (0, "")


def test_the_recording_has_the_commands_of_the_tutorial():
    picture = ET.parse(SCRIPTS.parent / "docs" / "pictures" / "tutorial.svg")  # noqa: S314 - our own
    recorded = [row.text.removeprefix("$ ") for row in picture.findall(".//{*}text") if row.get("class") == "command"]
    _install, *consoles = (block for block in blocks() if block.page == "docs/tutorial.md" and block.kind == "console")
    assert [command for block in consoles if (command := block.commands[-1]) not in recorded] == []

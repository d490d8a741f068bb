"""docs/command-line.md has the exit codes, commands and JSON keys of the code."""

import re
from pathlib import Path

import pytest

from allranks.cli.main import commands
from allranks.errors import MEANING, PRECEDENCE, ExitCode

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "command-line.md").read_text()


def test_the_page_has_every_exit_code_and_their_order():
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", PAGE, re.MULTILINE)
    assert {int(code): meaning for code, meaning in rows} == {int(code): MEANING[code] for code in ExitCode}
    assert f"the first of {', '.join(str(int(code)) for code in PRECEDENCE)} counts" in PAGE


@pytest.mark.parametrize("command", [command.name for command in commands()])
def test_the_page_names_every_command(command):
    assert f"`{command}`" in PAGE


def test_every_command_with_json_has_its_keys_on_the_page(allranks):
    names = [command.name for command in commands() if "--json" in allranks(command.name, "--help")[1]]
    assert {"plan", "doctor", "clean", "report"} <= set(names)
    rows = PAGE.partition("## JSON")[2]
    for name in names:
        assert re.search(rf"^\| [^|]*`{name}`[^|]* \| `[a-z_]+`", rows, re.MULTILINE), name


def test_the_keys_on_the_page_are_those_that_are_printed(allranks):
    import json

    printed = json.loads(allranks("plan", "--json")[1])
    [row] = re.findall(r"^\| `plan` \| (`file`.*) \|$", PAGE, re.MULTILINE)
    keys = set(re.findall(r"`(\w+)`", row))
    assert keys == {*printed, *printed["cells"][0], *printed["dropped"][0]} - {"schema"}

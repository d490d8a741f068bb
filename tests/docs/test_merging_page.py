"""The commands of docs/merging.md run on the folders that they name."""

import shutil

import pytest
from blocks import blocks
from test_history_page import RANK, write_run

PAGE = "docs/merging.md"


@pytest.mark.thorough
def test_its_commands_run(shell):
    for name in ("results/latest", "gathered/machine-1"):
        write_run(shell.folder / name)
    shutil.copytree(shell.folder / "gathered/machine-1", shell.folder / "gathered/machine-2")
    (shell.folder / "out/gloo-w1-g0-env/tests").mkdir(parents=True)
    (shell.folder / "out/gloo-w1-g0-env/tests/junit.0.xml").write_text(RANK)
    (shell.folder / "tests").mkdir()
    (shell.folder / "tests/test_a.py").write_text("def test_a():\n    pass\n")
    found = [block for block in blocks() if (block.page, block.kind) == (PAGE, "console")]
    commands = [command for block in found for command in block.commands]
    assert [command.split()[0] for command in commands] == [*["allranks"] * 5, "torchrun", "allranks"]
    for command in (commands[5], *commands[:5], commands[6]):  # torchrun writes what the fourth merges
        assert "exit code 0: no test failed" in shell(command) or command.startswith("torchrun")

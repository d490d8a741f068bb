"""docs/conformance.md: its backend can be registered, and its command is valid."""

import shlex
import subprocess
import sys

from blocks import blocks

from allranks.cli.main import command_line, commands

BLOCKS = {block.kind: block for block in blocks() if block.page == "docs/conformance.md"}
USE = "import my_backend, torch.distributed as dist; print(dist.Backend.backend_capability['mine'])"


def test_the_backend_is_registered_when_its_module_is_imported(tmp_path):
    (tmp_path / "my_backend.py").write_text(BLOCKS["python"].text)
    done = subprocess.run([sys.executable, "-c", USE], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "['cpu']\n"


def test_the_command_is_one_of_allranks():
    [command] = [line for line in BLOCKS["console"].commands if line.startswith("allranks ")]
    _, name, *arguments = shlex.split(command)
    [conformance] = [found for found in commands() if found.name == name]
    options = command_line(conformance).parse(arguments, ())
    assert (options.backend, options.module, options.world_size) == ("mine", "my_backend", (2, 4))

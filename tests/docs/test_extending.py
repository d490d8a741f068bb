"""The blocks of docs/extending.md make a package, whose engine runs a job, and whose command greets."""

import json
import sys

import pytest
from blocks import Block, blocks

BLOCKS = [each for each in blocks() if each.page == "docs/extending.md"]
PYTHON = [each for each in BLOCKS if each.kind == "python"]

ENGINE = """\
import dataclasses
from pathlib import Path

from allranks.engines.package import package_path
from allranks.engines.process import ProcessEngine
from allranks.engines.host_processes import ConnectedProcesses, ProcessKind


class LsfEngine(ProcessEngine):
    name = "lsf"

    def __init__(self, queue):
        super().__init__(package_path(Path("package").absolute()))


class Connected(ConnectedProcesses):
    name = "lsf"

    def cleaner(self):
        return LsfEngine(queue="cpu")


class Kind(ProcessKind):
    name = "lsf"

    def connect(self):
        return Connected()


KIND = Kind()
"""

MATRIX = """\
[matrix]
backend = ["gloo"]
world_size = [2]

[suites.distributed]
path = "tests"

[images.cpu]
torch = "2.13.0"

[process]
python = {python!r}
"""


@pytest.fixture
def package(shell):
    """Install the package of the page, as pip would, into a folder of its own."""
    site = shell.folder / "site"
    info = site / "mypackage-1.0.dist-info"
    (site / "mypackage").mkdir(parents=True)
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mypackage\nVersion: 1.0\n")
    points = [entry_points(each) for each in BLOCKS if each.kind == "toml"]
    assert len(points) == 2
    (info / "entry_points.txt").write_text("\n".join(points))
    (site / "mypackage" / "__init__.py").touch()
    (site / "mypackage" / "lsf.py").write_text(ENGINE)
    (site / "mypackage" / "plugin.py").write_text(PYTHON[-1].text)
    return site


def entry_points(block: Block) -> str:
    """A table of pyproject.toml as the file that an installed package has of it."""
    lines = [line for line in block.text.splitlines() if line and not line.startswith("#")]
    return (
        "\n".join(lines).replace('[project.entry-points."', "[").replace('"]', "]").replace(' "', " ").replace('"', "")
    )


def test_every_block_is_run():
    assert [each.why_not for each in BLOCKS] == [""] * 5


def test_the_contract_s_tests_run_on_an_engine_of_the_package(shell, package):
    conftest, tests, _ = PYTHON
    (shell.folder / "conftest.py").write_text(conftest.text)
    (shell.folder / "test_lsf.py").write_text(tests.text)
    told = shell(f"PYTHONPATH={package} pytest test_lsf.py -k 'start_to_results or carries'")
    assert " passed" in told


def test_a_run_takes_that_engine(shell, package):
    (shell.folder / "tests").mkdir()
    (shell.folder / "tests" / "test_it.py").write_text("def test_it(rank):\n    assert rank < 2\n")
    (shell.folder / "matrix.toml").write_text(MATRIX.format(python=sys.executable))
    shell(f"PYTHONPATH={package} allranks run --engine lsf")
    [job] = json.loads((shell.folder / "results/latest/report.json").read_text())["suites"]
    assert (job["engine"], job["counts"]["passed"]) == ("lsf", 1)


def test_its_command_is_one_of_allranks(shell, package):
    assert shell(f"PYTHONPATH={package} allranks greet --loud") == "HELLO\n"
    assert "say hello" in shell(f"PYTHONPATH={package} allranks --help")

"""The blocks of docs/extending.md make a package: an engine that runs a job, a command, and a section of the report."""

import json
import sys
from pathlib import Path

import pytest
from blocks import Block, blocks

BLOCKS = [block for block in blocks() if block.page == "docs/extending.md"]
PYTHON = [block for block in BLOCKS if block.kind == "python"]

ENGINE = """\
from allranks.engines.process import ProcessEngine


class LsfEngine(ProcessEngine):
    name = "lsf"

    def __init__(self, queue="cpu"):
        super().__init__()
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
    """Install the package of the page into a folder, as pip would."""
    site = shell.folder / "site"
    info = site / "mypackage-1.0.dist-info"
    (site / "mypackage").mkdir(parents=True)
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mypackage\nVersion: 1.0\n")
    [points] = [entry_points(block) for block in BLOCKS if block.kind == "toml"]
    (info / "entry_points.txt").write_text(points)
    (site / "mypackage" / "__init__.py").touch()
    (site / "mypackage" / "lsf.py").write_text(ENGINE)
    for block in PYTHON[:-2]:
        name = block.text.partition("\n")[0].removeprefix("# mypackage/")
        (site / "mypackage" / name).write_text(block.text)
    return site


def entry_points(block: Block) -> str:
    """The entry points of pyproject.toml, in the format of an installed package."""
    lines = [line for line in block.text.splitlines() if line and not line.startswith("#")]
    return (
        "\n".join(lines).replace('[project.entry-points."', "[").replace('"]', "]").replace(' "', " ").replace('"', "")
    )


def test_every_block_is_run():
    assert [block.why_not for block in BLOCKS] == [""] * 8


@pytest.mark.thorough
def test_the_contract_s_tests_run_on_an_engine_of_the_package(shell, package):
    *_, conftest, tests = PYTHON
    contract = Path(__file__).parents[1] / "engine_contract.py"
    (shell.folder / contract.name).write_text(contract.read_text())
    (shell.folder / "conftest.py").write_text(conftest.text)
    (shell.folder / "test_lsf.py").write_text(tests.text)
    output = shell(f"PYTHONPATH={package} pytest test_lsf.py -k 'start_to_results or carries'")
    assert " passed" in output


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


@pytest.mark.thorough
def test_its_section_is_in_the_report_of_a_merge_by_its_option(shell, package):
    case = '<testcase classname="t" name="{}" time="{}"/>'
    cases = "".join(case.format(name, time) for name, time in (("quick", 0.1), ("slow", 9), ("slower", 12)))
    ranks = shell.folder / "ranks"
    job = ranks / "gloo-w1-g0-env" / "tests"
    job.mkdir(parents=True)
    (job / "rank-0.xml").write_text(f"<testsuite>{cases}</testsuite>")
    output = shell(f"PYTHONPATH={package} allranks report ranks --slowest 2")
    assert "\nSlowest tests: 2 of 3.\n12.00 s t::slower\n9.00 s t::slow\n" in output
    assert "### Slowest tests: 2 of 3\n\n- 12.00 s t::slower\n" in (ranks / "summary.md").read_text()
    assert "<p>12.00 s t::slower</p>" in (ranks / "report.html").read_text()
    assert json.loads((ranks / "report.json").read_text())["slowest_tests"] == {"tests": ["t::slower", "t::slow"]}
    assert "Slowest" not in shell(f"PYTHONPATH={package} allranks report ranks")


@pytest.mark.thorough
def test_its_table_is_one_of_the_matrix_file(shell, package):
    matrix = shell.folder / "matrix.toml"
    (shell.folder / "tests").mkdir()
    (shell.folder / "tests" / "test_it.py").write_text("def test_it(rank):\n    assert rank < 2\n")
    matrix.write_text(MATRIX.format(python=sys.executable) + "\n[slowest]\n")
    output = shell(f"PYTHONPATH={package} allranks run --engine process")
    assert "\nSlowest tests: 1 of 1.\n" in output
    schema = json.loads(shell(f"PYTHONPATH={package} allranks init --schema"))
    assert schema["properties"]["slowest"]["properties"]["tests"]["minimum"] == 1
    matrix.write_text(matrix.read_text() + "tests = 0\n")
    assert "slowest.tests: 0 is out of range" in shell(f"PYTHONPATH={package} allranks plan", code=2)
    assert "slowest: there is no such key" in shell("allranks plan", code=2)

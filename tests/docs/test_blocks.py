"""Every block of code in the README and the docs runs as it is, or has a comment that states why not."""

import re
import sys
import tomllib
from datetime import date

import pytest
import yaml
from blocks import ROOT, Block, blocks
from long_lists import quick

from allranks.agent.collect import suite_lists
from allranks.matrix.declaration import load

# Other tests run these blocks.
ELSEWHERE = {
    ("docs/testing.md", "python"): "tests/testing/test_docs.py",
    ("docs/testing-cases.md", "python"): "tests/docs/test_fragments.py",
    ("docs/debuggers.md", "ini"): "tests/pytest_plugin/test_ranks_debugging.py",
    ("docs/downloaded-report.md", "python"): "tests/junit/test_downloaded_page.py",
    ("docs/extending.md", "python"): "tests/docs/test_extending.py",
    ("docs/extending.md", "toml"): "tests/docs/test_extending.py",
    ("docs/conformance.md", "python"): "tests/docs/test_conformance_page.py",
    ("docs/conformance.md", "console"): "tests/docs/test_conformance_page.py",
    ("CONTRIBUTING.md", "json"): "tests/torch_suites/test_differences.py",
    ("docs/existing-tests.md", "python"): "tests/e2e/test_existing_tests.py",
    ("docs/history.md", "console"): "tests/docs/test_history_page.py",
    ("docs/merging.md", "console"): "tests/docs/test_merging_page.py",
    ("docs/history.md", "yaml"): "tests/docs/test_history_page.py",
    ("docs/existing-tests.md", "toml"): "tests/e2e/test_existing_tests.py",
}
# What a test would need.
REASONS = (
    "GPU",
    "PyTorch's own tree",
    "a cluster",
    "a Docker daemon",
    "one machine each",
    "over 60 s",
    "a person",
    "a host with images of months",
)
BY_KIND = {
    kind: [
        block for block in blocks() if block.kind == kind and not block.why_not and (block.page, kind) not in ELSEWHERE
    ]
    for kind in ("console", "python", "toml", "yaml")
}
HEAD = '[matrix]\nbackend = ["gloo"]\nworld_size = [2]\n'
SUITE = '[suites.distributed]\npath = "tests"\n'
IMAGE = '[images.cpu]\ntorch = "2.13.0"\n'
DEMO = f"""\
{HEAD}init_method = ["env", "tcp"]

[suites.distributed]
path = "tests"
shards = 2

{IMAGE}
[process]
python = {{python!r}}
"""


TORCH_CASE = """\
from torch.testing._internal.common_distributed import MultiProcessTestCase


class TestRanks(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def test_rank(self):
        assert self.rank < 2
"""


def only(page, kind, containing=""):
    [block] = [block for block in BY_KIND[kind] if block.page == page and containing in block.text]
    return block


def test_every_block_has_a_test_or_a_reason():
    found = list(blocks())
    untested = [block for block in found if not block.why_not and (block.page, block.kind) not in ELSEWHERE]
    assert len(found) > 70
    assert {block.kind for block in untested} <= {*BY_KIND, "text"}
    assert {page for page, _ in ELSEWHERE} <= {block.page for block in found}
    assert all((ROOT / test).is_file() for test in ELSEWHERE.values())
    assert {block.why_not for block in found if not block.why_not.startswith(REASONS)} == {""}
    assert {block.page for block in BY_KIND["console"]} == {
        "README.md",
        "docs/command-line.md",
        "docs/launcher-tests.md",
        "docs/matrix.md",
        "docs/runs.md",
        "docs/tutorial.md",
    }


@pytest.mark.parametrize("block", BY_KIND["toml"], ids=str)
def test_toml(block: Block, tmp_path):
    document = tomllib.loads(block.text)
    if "failure" in document:
        (tmp_path / "expected_failures.toml").write_text(block.text)
        assert suite_lists.read_expected(tmp_path / "expected_failures.toml")
        return
    if "test" in document:
        (tmp_path / "disabled_tests.toml").write_text(block.text)
        assert suite_lists.read_disabled(tmp_path / "disabled_tests.toml", date(2026, 1, 1))
        return
    text = block.text
    for table, lines in (("[matrix]\n", HEAD), ("[suites.", SUITE), ("[images.", IMAGE)):
        if table not in text:
            text += f"\n{lines}"
        elif table == "[matrix]\n" and not document["matrix"]:
            text = text.replace(table, HEAD)
    images = document.get("images", {}).values()
    if images and "matrix" not in document and all("when" in image for image in images):
        text += '[images.rest]\ntorch = "2.13.0"\n'
    pytorch_folders = ("test/distributed/launcher/bin", "test/distributed/algorithms/quantization")
    folders = ("tests/data", "tests/distributed/slow", "tests/distributed/deep", "tests/launched", "tests/unit")
    for name in (*folders, *pytorch_folders):
        (tmp_path / name).mkdir(parents=True)
    tests = (
        "tests/unit/test_reduce_1.py",
        "tests/distributed/deep/test_elastic.py",
        "test/distributed/test_distributed_spawn.py",
    )
    for name in ("requirements-test.txt", "pyproject.toml", *tests):
        (tmp_path / name).touch()
    (tmp_path / "matrix.toml").write_text(text)
    assert load(tmp_path).cells


@pytest.mark.thorough
@pytest.mark.parametrize("block", quick(1, BY_KIND["python"]), ids=str)
def test_python(block: Block, shell):
    if "register()" in block.text:
        shell("allranks init")
        (shell.folder / "noxfile.py").write_text(block.text.replace("file:///path/to/allranks", ROOT.as_uri()))
        assert "dist(backend='gloo') -> gloo: 2 cells" in shell("nox --no-venv --list")
        return
    (shell.folder / "test_block.py").write_text(block.text)
    passes = "if rank == 0:\n        dist.broadcast" not in block.text  # the tutorial's bug
    output = shell("pytest --ranks 2 test_block.py", code=0 if passes else 1)
    assert re.search(r"\d+ passed" if passes else r"rank 1 failed: assert \[1.0, 2.0, 3.0\] == ", output)


def test_yaml_calls_the_workflow_with_inputs_that_it_has():
    [block] = BY_KIND["yaml"]
    [job] = yaml.safe_load(block.text)["jobs"].values()
    name = re.search(r"/\.github/workflows/(\w+\.yml)@", job["uses"])[1]
    called = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())
    inputs = called[True]["workflow_call"]["inputs"]  # YAML reads `on` as true
    assert set(job.get("with", {})) <= set(inputs)
    assert {key for key, value in inputs.items() if value.get("required")} <= set(job.get("with", {}))


@pytest.mark.thorough
def test_the_quick_start_of_the_readme_ends_in_the_line_that_it_shows(shell):
    block = only("README.md", "console", "--ranks")
    install, file, run = block.commands
    assert re.fullmatch(r"python3 -m venv venv && venv/bin/pip install \S+ pytest torch numpy", install)
    shell(file)
    dots, shown = block.shown
    assert dots == "…"
    assert "rank 1 failed" in shown
    run = run.replace("venv/bin/", "")
    assert shown in shell(f"COLUMNS=80 {run}", code=1).splitlines(), "a terminal of the usual width"
    assert shown.removesuffix("...") in shell(run, code=1)


@pytest.mark.thorough
def test_the_readme_s_commands_for_a_repository_run_in_an_empty_folder(shell):
    block = only("README.md", "console", "allranks init")
    output = [shell(command) for command in block.commands]
    assert "exit code 0: no test failed" in output[1]
    assert (shell.folder / "results/latest/report.html").is_file()


@pytest.mark.thorough
def test_the_tutorial_from_its_first_command_to_its_last(shell):
    consoles = [block for block in BY_KIND["console"] if block.page == "docs/tutorial.md"]
    install, init, plan, first, red, again = consoles
    assert install.commands[-1] == "pip install path/to/allranks pytest torch numpy"
    output = shell(init.commands[-1])
    assert [line for line in init.shown if line not in output] == []
    output = shell(*plan.commands)
    assert [line for line in plan.shown if line not in output] == []
    output = timeless(shell(*first.commands))
    assert [line for line in first.shown if timeless(line) not in output] == []
    _, broadcast = (block for block in BY_KIND["python"] if block.page == "docs/tutorial.md")
    test = shell.folder / "tests/distributed/test_broadcast.py"
    test.write_text(broadcast.text)
    output = timeless(shell(*red.commands, code=1)).replace(f"{shell.folder}/", "")  # the page shows no user's folder
    assert [line for line in red.shown if line != "…" and timeless(line) not in output] == []
    test.write_text(re.sub(r"    if rank == 0:\n    (.*)\n", r"\1\n", broadcast.text))
    output = timeless(shell(*again.commands))
    assert [line for line in again.shown if line != "…" and timeless(line) not in output] == []


def timeless(text):
    """A text without times, seeds and line breaks, which differ from run to run."""
    return " ".join(re.sub(r"\d+\.\d+ s\b|--seed \d+", "", text).split())


@pytest.mark.thorough
def test_torch_s_own_classes_run_by_the_plugin(shell):
    [command] = only("docs/launcher-tests.md", "console").commands
    (shell.folder / "test_torch_s.py").write_text(TORCH_CASE)
    assert "1 passed" in shell(command)


@pytest.mark.thorough
@pytest.mark.parametrize("page", quick(1, ["docs/command-line.md", "docs/matrix.md", "docs/runs.md"]))
def test_consoles_of_a_page_one_after_the_other(page, shell):
    (shell.folder / "tests").mkdir()
    (shell.folder / "matrix.toml").write_text(DEMO.format(python=sys.executable))
    for file, test in (("test_x.py", "test_y_reduce"), ("test_other.py", "test_other")):
        (shell.folder / "tests" / file).write_text(f"def {test}(rank):\n    assert rank < 2\n")
    for block in (block for block in BY_KIND["console"] if block.page == page):
        assert block.commands, block
        for command in block.commands:
            if command.startswith("allranks report gathered"):
                shell("ALLRANKS_RUN_ID=ci-123 allranks run --suite distributed@1of2")
                shell("mkdir gathered && mv results/ci-123 gathered/machine-1")
            shell(command.replace("torch-rpc@2of4", "distributed@2of2").replace("::test_y ", "::test_y_reduce "))

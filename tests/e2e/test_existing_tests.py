"""The recipes of docs/existing-tests.md, all in one run of one repository."""

import re
import sys
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "existing-tests.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(toml|python)\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)

HEAD = """\
[matrix]
backend = ["gloo"]
world_size = [2]
"""

SUITES = {"torchrun", "each", "mpi", "deepspeed", "torch", "fabric"}


@pytest.fixture(scope="module")
def matrix():
    text = "\n".join([HEAD, *(text for kind, text in BLOCKS if kind == "toml")])
    assert text.count('"python3"') == 1
    return text.replace('"python3"', repr(sys.executable))


@pytest.mark.thorough
def test_every_recipe_runs_as_the_page_has_it(tmp_path, launch, matrix, plugins, monkeypatch):
    folder = tmp_path / "repository"
    for text in (text for kind, text in BLOCKS if kind == "python"):
        file = folder / text.partition("\n")[0].removeprefix("# ")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (folder / "matrix.toml").write_text(matrix)
    monkeypatch.setenv("PYTHONPATH", plugins)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    done = launch(folder, "--engine", "process")
    assert done.code == 0, done.output
    passed = re.findall(r"gloo-w2-g0-env/(\w+): 1 passed", done.output)
    assert sorted(passed) == sorted(SUITES), done.output

"""docs/torch-names.md agrees with the installed torch and with allranks.testing."""

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import allranks.testing
from allranks.testing import fixtures, markers

PAGE = Path(__file__).parents[2] / "docs" / "torch-names.md"
TEXT = PAGE.read_text(encoding="utf-8").partition("## Of other modules")[0]
MODULES = ("common_distributed", "dist_utils")


class Row(NamedTuple):
    torch: list[str]
    here: list[str]
    words: str


def rows(text: str) -> Iterator[Row]:
    """The rows of all tables: the names in the first two columns, and the third column."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            torch, here, words = cells
            yield Row(re.findall(r"`([^`]+)`", torch), re.findall(r"`([^`]+)`", here), words)


def public_names(module: str) -> set[str]:
    """The public names that a module of torch defines; parsed, because importing it takes seconds."""
    folder = Path(importlib.util.find_spec("torch").origin).parent / "testing" / "_internal"
    return {name for name in defined(ast.parse((folder / f"{module}.py").read_bytes()).body) if name[0] != "_"}


def defined(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                yield from (target.id for target in targets if isinstance(target, ast.Name))
            case ast.If() | ast.Try():
                yield from defined([*node.body, *node.orelse, *getattr(node, "finalbody", [])])


def is_ours(name: str) -> bool:
    """Whether this is a name in ``allranks.testing``, an attribute of one, a fixture or a marker."""
    first, *attributes = name.split(".")
    if first in allranks.testing.__all__:
        value = getattr(allranks.testing, first)
        return not attributes or hasattr(value, ".".join(attributes))
    fixture = type(getattr(fixtures, name, None)).__name__ == "FixtureFunctionDefinition"
    return fixture or any(re.match(rf"{re.escape(name)}\b", line) for line in markers.marker_lines())


TABLE = list(rows(TEXT))


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_of_torch_has_a_row(module):
    names = public_names(module)
    assert len(names) >= 10
    assert names - {name for row in TABLE for name in row.torch} == set()


def test_no_name_of_torch_has_two_rows():
    named = [name for row in TABLE for name in row.torch]
    assert len(named) == len(set(named)) > 75


def test_a_name_that_this_torch_does_not_have_names_its_version():
    existing = {name for module in MODULES for name in public_names(module)}
    others = {name for row in TABLE for name in row.torch} - existing
    assert {name for name in others if not re.search(rf"`{name}` \((?:before )?2\.\d+\)", TEXT)} == set()


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.torch[0])
def test_a_row_names_an_existing_replacement_or_a_reason(row):
    assert [name for name in row.here if not is_ours(name)] == []
    assert row.here or len(row.words.split()) > 2


def test_a_name_that_nobody_has_is_found():
    assert [is_ours(name) for name in ("require_tpus", "SkipCode.NO_TPU", "MultiProcessTestCase.rocket")] == [False] * 3
    assert [is_ours(name) for name in ("store", "time_limit", "MultiProcessTestCase.init_method")] == [True] * 3


def test_a_row_has_the_names_of_torch_and_of_allranks():
    text = "| torch | here | |\n|---|---|---|\n| `a`, `b` (2.6) | `c` | words |\n| `d` | — | why it is not here |\n"
    assert list(rows(text)) == [Row(["a", "b"], ["c"], "words"), Row(["d"], [], "why it is not here")]

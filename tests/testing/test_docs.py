"""docs/testing.md and docs/api.md agree with the code."""

import re
from pathlib import Path

import pytest

import allranks.testing
from allranks.testing import fixtures

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "testing.md").read_text(encoding="utf-8")


def test_its_examples_run_in_a_gang_of_two(run_gang):
    examples = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    agent = run_gang({f"test_example_{number}.py": text for number, text in enumerate(examples)})
    outcomes = {name: set(agent.outcomes(name)) for name in agent.cases(0)}
    of_gpus = {outcomes.pop(name).pop() for name in ("test_peer_copy", "test_peer_read", "test_peer_write")}
    assert of_gpus <= {"skipped", "passed"}
    assert len(outcomes) == 7
    assert {name for name, seen in outcomes.items() if seen != {"passed"}} == set()


@pytest.mark.parametrize("name", allranks.testing.__all__)
def test_the_docs_mention_every_public_name(name):
    pages = [page.read_text(encoding="utf-8") for page in DOCS.glob("*.md")]
    assert any(re.search(rf"`[^`\n]*\b{name}\b[^`\n]*`", page) for page in pages)


def described() -> set[str]:
    """The names whose docstrings docs/api.md shows."""
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    members = re.findall(r":members: ((?:\w+,?\s+)+)", text)
    return {name for group in members for name in re.findall(r"\w+", group)} | set(
        re.findall(r"autodata:: [\w.]+\.(\w+)", text)
    )


def public_fixtures() -> set[str]:
    """The names of all fixtures that suites can use."""
    found = {name for name, value in vars(fixtures).items() if type(value).__name__ == "FixtureFunctionDefinition"}
    return {name for name in found if not name.startswith("_")}


def test_the_reference_has_the_docstring_of_every_public_name_and_fixture():
    assert {*allranks.testing.__all__, *public_fixtures()} - described() == set()


def test_it_names_every_fixture():
    assert len(public_fixtures()) == 17
    assert {name for name in public_fixtures() if f"`{name}`" not in TEXT} == set()

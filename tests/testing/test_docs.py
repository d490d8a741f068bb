"""What docs/testing.md says is true of the code."""

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
def test_the_docs_name_everything_that_can_be_imported(name):
    pages = [page.read_text(encoding="utf-8") for page in DOCS.glob("*.md")]
    assert any(re.search(rf"`[^`\n]*\b{name}\b[^`\n]*`", page) for page in pages)


def described() -> set[str]:
    """The names that docs/api.md takes from docstrings."""
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    members = re.findall(r":members: ((?:\w+,?\s+)+)", text)
    return {name for each in members for name in re.findall(r"\w+", each)} | set(
        re.findall(r"autodata:: [\w.]+\.(\w+)", text)
    )


def test_the_reference_has_the_docstring_of_every_public_name_and_fixture():
    made = {name for name, value in vars(fixtures).items() if type(value).__name__ == "FixtureFunctionDefinition"}
    public = {name for name in made if not name.startswith("_")}
    assert {*allranks.testing.__all__, *public} - described() == set()


def test_it_names_every_fixture():
    made = {name for name, value in vars(fixtures).items() if type(value).__name__ == "FixtureFunctionDefinition"}
    public = {name for name in made if not name.startswith("_")}
    assert len(public) == 17
    assert {name for name in public if f"`{name}`" not in TEXT} == set()

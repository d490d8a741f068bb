"""Each test of the kit's suite is tagged with an operation, so that none of them is missing from the table."""

import re
from pathlib import Path

import pytest

SUITE = Path(__file__).parents[4] / "suites" / "collectives"


@pytest.mark.parametrize("file", sorted(SUITE.glob("test_*.py")), ids=lambda file: file.stem)
def test_a_module_names_the_operation_of_its_tests(file):
    assert re.search(r"^pytestmark = \[?\s*pytest\.mark\.conformance\(operation=\"", file.read_text(), re.MULTILINE)

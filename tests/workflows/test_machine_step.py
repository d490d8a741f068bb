"""The step that compares a machine with its cells."""

from pathlib import Path

import pytest
from hosted import read_workflow

ROOT = Path(__file__).parents[2]
NAME = "Compare the machine with what its cells need"


@pytest.fixture
def steps():
    return read_workflow(ROOT / ".github/workflows/dist.yml")["jobs"]["run"]["steps"]


def test_the_machine_is_compared_before_anything_is_fetched(steps):
    names = [step["name"] for step in steps]
    assert names.index("Get the plan") < names.index(NAME) < names.index("Get the images")


def test_its_reason_lies_where_the_results_of_the_batch_are_taken_from(steps):
    step = next(step for step in steps if step["name"] == NAME)
    assert step["if"] == "matrix.gpus > 0"
    assert step["env"]["ALLRANKS_BATCH"] == "${{ matrix.batch }}"
    assert '--results "$RUNNER_TEMP/results"' in step["run"]

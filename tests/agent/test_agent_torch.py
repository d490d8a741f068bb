"""A job runs with the version of torch in the matrix file, or not at all."""

import json
import sys

import pytest
import torch

from allranks.agent.collect.fork_server import is_torch_of
from allranks.protocol.records import AgentFailed, Collected


def test_an_agent_with_another_version_of_torch_runs_no_test(start_agent):
    agent = start_agent({"test_it.py": "def test_passes(): pass\n"}, torch="1.13.1")
    agent.wait()
    [failed] = agent.all(AgentFailed)
    assert failed.message.startswith("the matrix file requires torch 1.13.1, but this job's Python has torch 2.")
    assert agent.all(Collected) == []


MATRIX = """
[matrix]
backend = ["gloo"]
world_size = [2]

[suites.s]
path = "suite"

[images.default]
torch = "{stated}"

[process]
python = {python}
"""


@pytest.mark.thorough
@pytest.mark.parametrize("stated", ["2.99.0", "1.13", f"{torch.__version__.partition('+')[0]}+cu126"])
def test_a_given_interpreter_with_another_torch_than_the_images_is_an_error(repository, allranks, stated):
    (repository / "matrix.toml").write_text(MATRIX.format(stated=stated, python=json.dumps(sys.executable)))
    code, _, _ = allranks("run", "--engine", "process")
    report = (repository / "results/latest/junit.xml").read_text()
    assert f"the matrix file requires torch {stated}, but this job's Python has torch {torch.__version__}" in report
    assert "process.python" in report
    assert code == 4


@pytest.mark.parametrize(
    ("wanted", "found", "is_it"),
    [
        ("", "2.13.0", True),
        ("2.13.0", "2.13.0+cpu", True),
        ("2.13", "2.13.0+cu130", True),
        ("2.13.0+cpu", "2.13.0+cpu", True),
        ("2.13.0+cu130", "2.13.0+cpu", False),
        ("2.13+cpu", "2.13.0+cpu", True),
        ("2.13.0+cu126", "2.13.0", False),
        ("2.13.0+git5bdc5bb", "2.13.0+GIT5bdc5bb", True),
        ("2.99.0", "2.13.0", False),
        ("2.13.0", "2.13.0a0+git5bdc5bb", False),
        ("2.13.0rc1", "2.13.0-rc.1+cpu", True),
        ("2.13.0.post1", "2.13.post1", True),
        ("2.13.0", "parrot", False),
        ("2.1", "2.10.0", False),
        ("2.13.0", "2.13.1", False),
        ("2.15.0.dev20261101", "2.15.0.dev20261101+cu130", True),
    ],
)
def test_a_local_version_counts_only_if_requested(wanted, found, is_it):
    assert is_torch_of(wanted, found) is is_it

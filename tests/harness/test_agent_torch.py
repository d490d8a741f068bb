"""A cell that is named after a torch version runs under that one, or not at all."""

import pytest

from allranks.harness.fork_server import is_torch_of
from allranks.records import AgentFailed, Collected


def test_an_agent_with_another_torch_than_its_cells_runs_no_test(start_agent):
    agent = start_agent({"test_it.py": "def test_passes(): pass\n"}, torch="1.13.1")
    agent.wait()
    [failed] = agent.all(AgentFailed)
    assert failed.message.startswith("the cell stands for torch 1.13.1, and the Python of this job has torch 2.")
    assert agent.all(Collected) == []


@pytest.mark.parametrize(
    ("wanted", "found", "is_it"),
    [
        ("", "2.13.0", True),
        ("2.13.0", "2.13.0+cpu", True),
        ("2.13", "2.13.0+cu130", True),
        ("2.13.0+cpu", "2.13.0+cpu", True),
        ("2.13.0+cu130", "2.13.0+cpu", False),
        ("2.1", "2.10.0", False),
        ("2.13.0", "2.13.1", False),
        ("2.15.0.dev20261101", "2.15.0.dev20261101+cu130", True),
    ],
)
def test_a_local_version_counts_only_where_it_was_asked_for(wanted, found, is_it):
    assert is_torch_of(wanted, found) is is_it

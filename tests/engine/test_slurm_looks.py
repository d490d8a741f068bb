"""How often the files of a job are looked at, which the nodes of a cluster share with all its users."""

import json
from pathlib import Path

import pytest

from allranks.engine.shared_folder_job import Allocation, _NodeAgent
from allranks.engine.slurm_queue import QueuedJob, Sighting


class FakeQueue:
    """A queue that has always seen the same."""

    def __init__(self, state):
        self.sighting = Sighting(job=QueuedJob(number="1", state=state), absences=0)

    def look(self, _name):
        return self.sighting


@pytest.fixture
def looks(tmp_path, monkeypatch):
    """The files that one round of a node's agent looks at, by the state of its job in SLURM."""
    (tmp_path / "node-0").mkdir()
    seen = []
    for name in ("exists", "open"):
        real = getattr(Path, name)

        def look(path, *arguments, real=real, **named):
            seen.append(path.name)
            return real(path, *arguments, **named)

        monkeypatch.setattr(Path, name, look)

    def of(state, is_vanished=False):
        allocation = Allocation(FakeQueue(state), tmp_path, "1")
        allocation.gone = 0.0 if is_vanished else None
        agent = _NodeAgent(allocation, 0)
        seen.clear()
        list(agent.hear(()))
        agent.close()
        return seen, agent.has_ended

    return of


def test_a_queued_job_costs_one_look_at_the_shared_folder(looks):
    assert looks("PENDING") == (["placed.json"], False)


def test_a_placed_job_is_looked_at_for_its_end_and_its_records(looks, tmp_path):
    (tmp_path / "node-0" / "placed.json").write_text(json.dumps({"at": 1.0, "host": "n1"}))
    assert looks("RUNNING")[0][-2:] == ["exit.json", "stream"]


def test_a_job_that_ended_before_its_supervisor_began_is_looked_at_once_more_and_has_ended(looks):
    assert looks("FAILED", is_vanished=True) == (["placed.json", "exit.json", "stream"], True)

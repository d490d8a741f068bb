"""Reading the agents of a job, independent of the engine."""

import os
import threading
import time
from types import SimpleNamespace

import pytest

from allranks.engines import agents
from allranks.engines.agents import JobOfAgents
from allranks.engines.base import NodeExit
from allranks.protocol.records import Finished, Went


class Told:
    """A fake agent that sends given records."""

    def __init__(self):
        self.has_ended = False
        self.reading, self.writing = os.pipe()
        self.descriptors = [self.reading]
        self.is_stop_requested = False

    def read(self, _ready):
        if os.read(self.reading, 1) == b".":
            return [Went()]
        self.has_ended = True
        return [Finished(status=0)]

    def go(self):
        pass

    def request_stop(self):
        self.is_stop_requested = True

    def resume(self):
        pass

    def end(self, _deadline):
        self.has_ended = True

    def exit(self):
        return NodeExit(status=0)


@pytest.fixture
def agent():
    agent = Told()
    yield agent
    os.close(agent.reading)
    os.close(agent.writing)


@pytest.mark.parametrize("held_up", [0, 3600])
def test_while_the_orchestrator_is_stopped_the_jobs_time_stands_still(agent, held_up, monkeypatch):
    clock = SimpleNamespace(offset=0.0)
    monkeypatch.setattr(agents, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + clock.offset))

    def go_on():
        clock.offset += held_up
        os.write(agent.writing, b".")

    job = JobOfAgents([agent], 60.0)
    records = []
    threading.Timer(0.1, go_on).start()
    threading.Timer(0.3, os.write, [agent.writing, b"!"]).start()
    job.go()
    ending = job.wait(lambda _node, record: records.append(record))
    job.close()
    assert not ending.timed_out
    assert records == [Went(), Finished(status=0)]


def test_a_job_that_exceeds_its_time_limit_is_stopped(agent, monkeypatch):
    monkeypatch.setattr(agents, "STOP_GRACE", 0.1)
    job = JobOfAgents([agent], 0.1)
    job.go()
    assert job.wait(lambda _node, _record: None).timed_out
    job.close()
    assert agent.is_stop_requested

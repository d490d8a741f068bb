"""The state of an attempt, without an engine: its resources, and its cancellation in each state."""

from pathlib import Path

import pytest

from allranks.report.run_files import JobError
from allranks.runner.attempt_runner import JobAttempt
from allranks.runner.gpu_leases import Lease
from allranks.runner.tasks import Capacity, Task

WHY = JobError(kind="stopped", what="Enough.")


class Running:
    def __init__(self):
        self.calls = []

    def go(self):
        self.calls.append("go")

    def request_stop(self):
        self.calls.append("request_stop")


@pytest.fixture
def attempt(pair):
    task = Task(0, Capacity(gpus=1, cores=2, memory=3), 1.0)
    return JobAttempt(run_id="r1", job=pair[0], task=task, number=1, folder=Path("unused"), lease=Lease())


def test_cores_are_held_only_while_the_agent_runs(attempt):
    assert (attempt.state, attempt.held) == ("standby", Capacity(gpus=1, cores=0, memory=3))
    attempt.release()
    assert (attempt.state, attempt.held) == ("running", Capacity(gpus=1, cores=2, memory=3))
    attempt.free_cores()
    assert (attempt.state, attempt.held) == ("closing", Capacity(gpus=1, cores=0, memory=3))


def test_a_released_attempt_runs(attempt):
    attempt.attach(running := Running())
    attempt.release()
    assert attempt.wait_for_release()
    attempt.go()
    assert running.calls == ["go"]


def test_an_attempt_that_is_cancelled_before_its_start_ends_at_once(attempt):
    attempt.cancel(WHY)
    attempt.attach(running := Running())
    assert not attempt.wait_for_release()
    attempt.go()
    assert (running.calls, attempt.cancelled) == (["request_stop"], WHY)


def test_a_removed_job_is_not_touched(attempt):
    attempt.attach(running := Running())
    attempt.detach()
    attempt.cancel(WHY)
    assert running.calls == []

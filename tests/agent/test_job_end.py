"""The end of a job by a stop request or its time limit."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from long_lists import quick

from allranks.agent import linux
from allranks.agent.job_end import STOPPED_STATUS, JobEnd, JobLimitError, StopRequestedError

SUPERVISOR = """
import sys, time
from allranks.protocol.config import TimeLimit
from allranks.agent.job_end import StopRequestedError, JobEnd, JobLimitError

end = JobEnd.of_this_process(TimeLimit(value=float(sys.argv[1]), setting="limits.job"))
if sys.argv[2] == "checks":
    end.disarm_immediate_exit()
print("ready", flush=True)
try:
    end.wait_for_start()
    print("started", end.remaining() <= float(sys.argv[1]), flush=True)
    while True:
        from allranks.agent import linux
        linux.is_readable(end.fileno(), min(end.remaining(), 20))
        end.check()
except (StopRequestedError, JobLimitError) as error:
    print(type(error).__name__, error, flush=True)
"""


class Supervisor:
    """A process that waits for the start, and then for the end of its job."""

    def __init__(self, limit=1000, behavior="checks"):
        self.process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISOR, str(limit), behavior], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.line() == "ready"

    def line(self):
        return self.process.stdout.readline().decode().strip()

    def go(self):
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()
        assert self.line() == "started True"

    def close(self):
        self.process.kill()
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


@pytest.fixture
def start():
    started = []

    def start_supervisor(**options):
        started.append(Supervisor(**options))
        return started[-1]

    yield start_supervisor
    for supervisor in started:
        supervisor.close()


def close_stdin(supervisor):
    supervisor.process.stdin.close()


def terminate(supervisor):
    supervisor.process.terminate()


@pytest.mark.parametrize("request_stop", [close_stdin, terminate])
def test_a_stop_request_ends_the_job(start, request_stop):
    supervisor = start()
    supervisor.go()
    request_stop(supervisor)
    assert supervisor.line() == "StopRequestedError the job was ended from outside"


@pytest.mark.parametrize("request_stop", [close_stdin, terminate])
def test_a_job_that_has_not_started_can_be_stopped(start, request_stop):
    supervisor = start()
    request_stop(supervisor)
    assert supervisor.line() == "StopRequestedError the job was ended from outside"


@pytest.mark.parametrize("request_stop", [close_stdin, terminate])
def test_a_stop_request_ends_a_process_without_state_immediately(start, request_stop):
    supervisor = start(behavior="exits")
    request_stop(supervisor)
    assert supervisor.process.wait(20) == STOPPED_STATUS
    assert supervisor.line() == ""


def test_the_time_limit_counts_from_the_start(start):
    supervisor = start(limit=0.2)
    supervisor.go()
    assert supervisor.line() == "JobLimitError the job's time limit of 0.2 s was reached (limits.job)"


def test_further_input_does_not_restart_the_time_limit(start):
    supervisor = start(limit=0.2)
    supervisor.go()
    supervisor.process.stdin.write(b"go\n" * 1000)
    supervisor.process.stdin.flush()
    assert supervisor.line() == "JobLimitError the job's time limit of 0.2 s was reached (limits.job)"


@pytest.fixture
def end():
    end = JobEnd()
    yield end
    end.close()


def test_a_job_without_a_limit_continues(end):
    end.check()
    assert end.remaining() == float("inf")
    assert not linux.is_readable(end.fileno(), 0)


def test_the_descriptor_stays_readable_after_a_stop_request(end):
    end.request_stop()
    for _ in range(2):
        assert linux.is_readable(end.fileno(), 0)
        assert end.is_over
        with pytest.raises(StopRequestedError):
            end.check()


def test_further_stop_requests_change_nothing(end):
    for _ in range(100_000):  # more than a pipe holds
        end.request_stop()
    with pytest.raises(StopRequestedError):
        end.wait_for_start()


def test_any_thread_can_request_a_stop(end):
    thread = threading.Thread(target=end.request_stop)
    thread.start()
    assert linux.is_readable(end.fileno(), 20)
    thread.join()


def test_a_signal_handler_can_request_a_stop_while_waiting_for_the_start(end):
    before = signal.signal(signal.SIGUSR1, lambda *_: end.request_stop())
    killer = threading.Thread(target=lambda: os.kill(os.getpid(), signal.SIGUSR1))
    try:
        killer.start()
        with pytest.raises(StopRequestedError):
            end.wait_for_start()
    finally:
        killer.join()
        signal.signal(signal.SIGUSR1, before)


def wait_interrupted_at(end, step):
    """Wait for the start in a thread, with a stop request at some step, as from a signal handler."""
    raised, steps = [], iter(range(1000))

    def interrupt(_frame, _event, _argument):
        if next(steps) == step:
            end.request_stop()
        return interrupt

    def wait():
        sys.settrace(interrupt)
        try:
            end.wait_for_start()
        except StopRequestedError:
            raised.append(step)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread, raised


@pytest.mark.parametrize("step", quick(3, range(30)))
def test_a_handler_may_request_a_stop_at_any_step_of_the_wait(step):
    end = JobEnd()
    thread, raised = wait_interrupted_at(end, step)
    if not linux.is_readable(end.fileno(), 0.2):
        end.request_stop()  # the wait has fewer steps
    thread.join(5)
    assert raised == [step]
    end.close()


def test_a_reached_limit_is_no_stop_request(end, monkeypatch):
    monkeypatch.setattr(end, "_deadline", 0.0)
    assert end.remaining() == 0.0
    with pytest.raises(JobLimitError):
        end.check()
    end.request_stop()
    with pytest.raises(StopRequestedError):
        end.check()


def test_close_leaves_no_descriptor():
    before = len(list(Path("/proc/self/fd").iterdir()))
    JobEnd().close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before

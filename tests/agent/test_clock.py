"""The order of a job's events, even if the system time or the clock of a test changes."""

import os
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_lists import quick

from allranks.agent import clock
from allranks.agent.channel import PhasesEnded, RankExit, RankReport
from allranks.agent.diagnose.step_outcome import Step, outcome_of_exit, outcome_of_report
from allranks.protocol.outcomes import Outcome, Phase
from allranks.protocol.records import RankEnded

FUNCTIONS = ("time", "time_ns", "monotonic", "monotonic_ns", "clock_gettime", "clock_gettime_ns", "perf_counter")


@pytest.mark.parametrize("jump", [-1e9, -3600.0, -1.0, 0.001, 1.0, 3600.0, 1e9])
def test_timestamps_ignore_changes_of_the_system_time(monkeypatch, jump):
    before, real = clock.now(), time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    assert before <= clock.now() < before + 60


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_frozen_time_function_stops_no_clock(monkeypatch, name):
    stamps = [(clock.now(), clock.monotonic(), clock.monotonic_ns())]
    monkeypatch.setattr(time, name, lambda *_: 0)
    clock.sleep(0.001)
    stamps.append((clock.now(), clock.monotonic(), clock.monotonic_ns()))
    assert all(first < second for first, second in zip(*stamps, strict=True))


def test_all_processes_of_a_job_share_a_clock_even_if_the_system_time_changes():
    program = "import time; time.time = lambda: 0.0\nfrom allranks.agent import clock; print(clock.now())"
    environment = {**os.environ, clock.VARIABLE: repr(clock.ORIGIN)}
    before = clock.now()
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    assert before < float(done.stdout) < clock.now()


@pytest.mark.parametrize("given", ["", "yesterday", "1e", "0x10"])
def test_without_the_variable_a_process_measures_its_own_clock(given):
    assert abs(clock._origin(given) + clock.monotonic() - time.time()) < 60


TEST = "t::x"


def failed(rank, at, *, is_symptom=False):
    phases = (Phase(when="call", outcome=Outcome.FAILED, duration=0.5, message="broken"),)
    return RankReport(rank=rank, at=at, message=PhasesEnded(nodeid=TEST, phases=phases, is_symptom=is_symptom))


def crashed(rank, at):
    return RankExit(rank=rank, status=-signal.SIGSEGV, at=at)


def step_with(*events):
    step = Step(nodeid=TEST)
    for event in events:
        if isinstance(event, RankReport):
            step.store(event.rank, event.message)
            step.add(outcome_of_report(event, event.message, step))
        else:
            step.add(outcome_of_exit(event, step))
    return step


@pytest.mark.parametrize(
    ("events", "leader"),
    [
        ([failed(0, 1.0), failed(1, 2.0)], 0),
        ([failed(0, 2.0), failed(1, 1.0)], 1),
        ([crashed(2, 3.0), failed(0, 2.0), failed(1, 1.0)], 1),
        ([failed(0, 2.0), crashed(2, 1.5), failed(1, 2.5)], 2),
        ([failed(0, 1.0, is_symptom=True), failed(1, 2.0)], 1),
        ([failed(1, 2.0), failed(0, 1.0, is_symptom=True)], 1),
        ([failed(0, 2.0, is_symptom=True), failed(1, 1.0, is_symptom=True)], 1),
        ([failed(0, 1.0), failed(1, 1.0)], 0),
    ],
)
def test_the_first_of_the_ranks_in_time_leads_in_whatever_order_their_nodes_report(events, leader):
    step = step_with(*events)
    step.attribute_secondary_failures(None)
    assert step.primary_failure.rank == leader


@given(st.permutations(range(5)))
def test_records_keep_the_order_of_outcomes(order):
    step = step_with(*(failed(rank, float(rank)) for rank in order))
    assert [outcome.rank for outcome in step.outcomes] == [0, 1, 2, 3, 4]
    assert step.cause.rank == 0


PATCHES = """
    import time
    import pytest

    JUMPS = {"back": -3600.0, "ahead": 3600.0, "frozen": None}

    @pytest.fixture(autouse=True)
    def other_time(request, rank, monkeypatch):
        jump = JUMPS[request.node.name.partition("[")[2].partition("]")[0].partition("-")[0]]
        if rank == int(request.node.name.rpartition("-")[2].rstrip("]")):
            for name in ("time", "monotonic", "perf_counter", "time_ns", "monotonic_ns"):
                real, start = getattr(time, name), getattr(time, name)()
                unit = 10**9 if name.endswith("_ns") else 1
                now = (lambda start=start: start) if jump is None else (
                    lambda real=real, unit=unit: real() + int(jump) * unit)
                monkeypatch.setattr(time, name, now)
"""

SUITE = """
    import pytest
    import torch
    import torch.distributed as dist

    @pytest.mark.parametrize("patched", [0, 1])
    @pytest.mark.parametrize("jump", ["back", "ahead", "frozen"])
    def test_rank_1_is_wrong(rank, jump, patched):
        assert rank == 0, "a bug of rank 1"
        dist.all_reduce(torch.ones(1))

    @pytest.mark.parametrize("patched", [0, 1])
    @pytest.mark.parametrize("jump", ["back", "ahead", "frozen"])
    def test_right(rank, jump, patched):
        dist.all_reduce(torch.ones(1))
"""


@pytest.fixture(scope="module")
def patched(run_once):
    return run_once("patched", {"conftest.py": PATCHES, "test_patched.py": SUITE})


@pytest.mark.parametrize("jump", quick(1, ["back", "ahead", "frozen"]))
@pytest.mark.parametrize("rank", quick(1, [0, 1]))
def test_a_rank_that_patches_time_changes_no_order(patched, jump, rank):
    first, *others = [end for end in patched.arrived(f"test_rank_1_is_wrong[{jump}-{rank}]") if end.outcome.is_bad]
    assert (first.rank, first.message) == (1, "AssertionError: a bug of rank 1")
    assert [end.caused_by for end in others] == [1]
    assert all(first.arrived <= end.arrived < first.arrived + 60 for end in others)
    assert patched.outcomes(f"test_right[{jump}-{rank}]") == ("passed", "passed")


def test_timestamps_never_decrease(patched):
    stamps = [record.at for record in patched.records]
    assert stamps == sorted(stamps)
    ends = [end.arrived for end in patched.ends if isinstance(end, RankEnded)]
    assert all(stamps[0] <= at <= stamps[-1] for at in ends)


LAUNCHING = """
    import time
    import pytest
    import torch
    import torch.distributed as dist
    from allranks.testing import MultiProcessTestCase

    class TestFrozen(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            if self.rank == self.MAIN_PROCESS_RANK:
                frozen = time.time()
                for name in ("time", "monotonic", "perf_counter"):
                    setattr(time, name, lambda: frozen)
            self._spawn_processes()

        def test_rank_1_is_wrong(self):
            assert self.rank == 0, "a bug of rank 1"
            time.sleep(600)
"""


def test_a_launcher_that_freezes_time_still_stops_ranks_that_hang(run_agent):
    agent = run_agent({"test_launching.py": LAUNCHING}, launches_ranks=True, limits={"test": 20})
    [first, *others] = [end for end in agent.arrived("TestFrozen::test_rank_1_is_wrong") if end.outcome.is_bad]
    assert (first.rank, first.outcome) == (1, Outcome.FAILED)
    assert first.message.endswith("a bug of rank 1")
    assert [(end.rank, end.caused_by) for end in others] == [(0, 1)]

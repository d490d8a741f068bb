"""What is done to ranks from outside ends with its time, or with the test."""

import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from allranks.agent.linux import state_of
from allranks.plugins.stress.agent.outside_skew import disturbing
from allranks.plugins.stress.agent.skew import Delay

LONG = 60.0


@pytest.fixture
def rank():
    """A process that waits for its end."""
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def delay(kind, *, rank=1, at=0, seconds=LONG):
    return Delay(rank=rank, kind=kind, call=at, seconds=seconds)


def wait_for(condition):
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def is_stopped(process):
    return state_of(process.pid) == "T"


def spinning():
    """The busy processes of this one, and the cores that each may have."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread, or one of its processes, has just ended
            for pid in (task / "children").read_text().split():
                if b"time.monotonic() < end" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found[int(pid)] = os.sched_getaffinity(int(pid))
    return found


@pytest.mark.parametrize("kind", ["stopped", "joining"])
def test_a_rank_is_stopped_until_the_test_ends(rank, kind):
    with disturbing({1: rank.pid}, [delay(kind)]):
        wait_for(lambda: is_stopped(rank))
    assert not is_stopped(rank)


def test_a_stopped_rank_goes_on_when_its_time_is_up(rank):
    with disturbing({1: rank.pid}, [delay("stopped", seconds=0.2)]):
        wait_for(lambda: is_stopped(rank))
        wait_for(lambda: not is_stopped(rank))


def test_a_throttled_rank_runs_now_and_then_until_its_time_is_up(rank):
    with disturbing({1: rank.pid}, [delay("throttled", seconds=0.45)]):
        for _ in range(3):
            wait_for(lambda: is_stopped(rank))
            wait_for(lambda: not is_stopped(rank))
    with disturbing({1: rank.pid}, [delay("throttled")]):
        wait_for(lambda: is_stopped(rank))
    assert not is_stopped(rank)


def test_a_rank_goes_on_though_the_test_is_broken_off(rank):
    def break_off():
        with disturbing({1: rank.pid}, [delay("stopped")]):
            wait_for(lambda: is_stopped(rank))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        break_off()
    assert not is_stopped(rank)


def test_busy_processes_run_anywhere_and_end_with_the_test(rank):
    with disturbing({1: rank.pid}, [delay("busy", rank=3)]):
        wait_for(lambda: len(spinning()) == 3)
        assert set(map(frozenset, spinning().values())) == {frozenset(os.sched_getaffinity(0))}
    assert not spinning()


def test_a_rank_shares_its_core(rank):
    with disturbing({1: rank.pid}, [delay("crowded")]):
        wait_for(lambda: len(spinning()) == 4 and all(len(cores) == 1 for cores in spinning().values()))
    assert not spinning()


@pytest.mark.parametrize("delays", [[], [delay("stopped", rank=2)], [delay("stopped", at=60_000)]], ids=str)
def test_a_test_that_ends_before_is_left_alone(rank, delays):
    began = time.monotonic()
    with disturbing({1: rank.pid}, delays):
        pass
    assert not is_stopped(rank)
    assert time.monotonic() - began < LONG / 2


def test_a_rank_that_has_ended_is_left_alone(rank):
    rank.kill()
    rank.wait()
    with disturbing({1: rank.pid}, [delay("stopped"), delay("crowded", seconds=0.01)]):
        pass

"""Hang reports of real agents."""

import pytest

HANGS = """
import os, signal, threading
import torch.distributed as dist

def test_waits_for_a_peer(rank):
    if rank == 0:
        dist.barrier()
    threading.Event().wait()

def test_blocks_signals(rank):
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    threading.Event().wait()

def test_is_stopped(rank):
    os.kill(os.getpid(), signal.SIGSTOP)
"""

THREAD_METHOD = """
import threading

def test_waits():
    threading.Event().wait()

def test_after(): pass
"""

# An agent waits for py-spy for two and a half seconds, and py-spy takes most of them on a host with nothing to do.
pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def hung(run_once):
    return run_once("hung", {"test_hangs.py": HANGS}, limits={"test": 1.0})


def test_a_waiting_rank_has_native_frames(hung):
    text = hung.cases(0)["test_waits_for_a_peer"].text
    assert "c10d::Work::wait (libtorch_cpu.so)" in text
    assert "c10d::Work::wait (libtorch_cpu.so)" in (hung.results / "rank-0.stacks.txt").read_text()


def test_a_rank_that_blocks_signals_still_has_its_line(hung):
    assert "it was in " in hung.cases(1)["test_blocks_signals"].message
    assert "in test_blocks_signals" in hung.cases(1)["test_blocks_signals"].text


def test_a_stopped_rank_still_has_its_python_stack(hung):
    assert hung.outcomes("test_is_stopped") == ("timed_out", "timed_out")
    assert "in test_is_stopped" in hung.cases(0)["test_is_stopped"].text


def test_the_thread_method_of_pytest_timeout_is_a_time_out(run_agent):
    arguments = ("-p", "pytest_timeout", "--timeout=0.3", "--timeout-method=thread")
    agent = run_agent({"test_slow.py": THREAD_METHOD}, pytest_args=arguments, world_size=1)
    assert agent.outcomes("test_waits") == ("timed_out",)
    assert "by pytest-timeout after 0.3 s (--timeout); it was in " in agent.cases(0)["test_waits"].message
    assert agent.outcomes("test_after") == ("passed",)

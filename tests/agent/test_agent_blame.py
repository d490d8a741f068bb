"""The ranks' calls decide which rank leads if one fails while a collective has not ended."""

import pytest
from long_lists import quick

HEAD = """
import threading
import time
import pytest
import torch
import torch.distributed as dist

def store():
    return dist.distributed_c10d._get_default_store()

def start():
    return dist.all_reduce(torch.ones(2), async_op=True)

def poll(is_done, times=20):
    for _ in range(times):
        if is_done():
            return True
        time.sleep(0.02)
    return False

def called_back(work):
    event = threading.Event()
    work.get_future().then(lambda _: event.set())
    return event
"""

LATE = """
def test_fails(rank, world_size):
    if rank == world_size - 1:
        time.sleep(60)
    {}
"""

NEVER_CALLED = [
    "future = start().get_future(); assert poll(future.done)",
    "work = start(); assert poll(work.is_completed)",
    "assert called_back(start()).wait(0.5)",
    "x = torch.zeros(2); work = dist.broadcast(x, world_size - 1, async_op=True); time.sleep(1); assert x[0]",
    "work = dist.barrier(async_op=True); time.sleep(0.2); assert work.is_completed()",
    "assert poll(lambda: store().compare_set('ready', 'no', 'no') == b'yes')",
    "assert poll(lambda: store().num_keys() > 9_999)",
    "assert poll(lambda: store().add('count', 0) == 5)",
]


@pytest.mark.parametrize("world_size", quick(1, [2, 4]))
@pytest.mark.parametrize("call", quick(1, NEVER_CALLED))
def test_the_rank_that_never_arrived_leads(run_agent, call, world_size):
    agent = run_agent({"test_late.py": HEAD + LATE.format(call)}, world_size=world_size)
    leaders = agent.leaders("test_fails")
    assert [end.rank for end in leaders] == [world_size - 1]
    assert leaders[0].outcome.value == "timed_out"


COMPUTING = """
def test_fails(rank, world_size):
    works = [start() for _ in range(2)]
    if rank == world_size - 1:
        time.sleep(60)  # it computes, after the same calls as its peers
    {}
"""

CALLED = [
    "assert [each.is_completed() for each in works] == [3, 4]",
    "for _ in range(5): works[0].get_future().done()\n    assert rank == 99",
    "time.sleep(0.2); assert rank == 99",
    "[each.wait() for each in works]; assert rank == 99",
    "work = works[-1]; del works; assert rank == 99",
]


@pytest.mark.parametrize("call", quick(1, CALLED))
def test_a_rank_that_fails_by_itself_leads_if_calls_match(run_agent, call):
    agent = run_agent({"test_computes.py": HEAD + COMPUTING.format(call)})
    leaders = agent.leaders("test_fails")
    assert [end.rank for end in leaders] == [0]
    assert "assert" in leaders[0].message
    assert agent.outcomes("test_fails") == ("failed", "aborted")


BEFORE_A_WAIT = """
class Custom(Exception):
    pass

def fails():
    {raises}

def test_fails(rank):
    if rank == 0:
        try:
            fails()
        finally:
            dist.barrier()
    dist.all_reduce(torch.ones(4))
"""
RAISED = [
    ("raise ValueError('wrong shape')", "ValueError: wrong shape"),
    ("raise Custom('its own')", "Custom: its own"),
    ("{}['weight']", "KeyError: 'weight'"),
    ("assert 1 == 2", "AssertionError: assert 1 == 2"),
    ("pytest.fail('by name')", "Failed: by name"),
    ("torch.ones(2) @ torch.ones(3)", "RuntimeError: "),
]


@pytest.mark.parametrize(("raises", "message"), quick(1, RAISED))
def test_a_failure_before_a_failed_wait_leads(run_agent, raises, message):
    files = {"test_before.py": HEAD + BEFORE_A_WAIT.replace("{raises}", raises)}
    agent = run_agent(files, limits={"process_group": 2.0, "test": 12.0})
    [leader] = agent.leaders("test_fails")
    assert leader.rank == 0
    assert message in leader.message, leader.message
    assert "; then " in leader.message
    assert leader.message.index(message) < leader.message.index("the ranks' calls differ: ")

"""Timeouts of the cell's process group: messages of torch name the setting, and those of allranks the limit."""

import pytest

from allranks.agent.rank.rank import with_group_limit
from allranks.protocol.config import TimeLimit

SUITE = """
    import time
    import torch
    import torch.distributed as dist

    def test_waits(rank):
        if rank == 1:
            time.sleep(600)
        dist.all_reduce(torch.ones(1))

    def test_fails_of_itself(rank, process_group):
        raise RuntimeError("1500 items")

    def test_joins_too_late():
        pass
"""
DELAYED = """
    import os, time
    import torch.distributed as dist

    make = dist.init_process_group

    def make_late(*args, **kwargs):
        if kwargs["rank"] == 1:
            time.sleep(600)
        make(*args, **kwargs)

    dist.init_process_group = make_late
"""


@pytest.fixture(scope="module")
def agent(run_once):
    limits = {"process_group": 1.5, "test": 60, "peer_grace": 0.3}
    return run_once("group-limit", {"test_it.py": SUITE}, limits=limits)


def test_a_collective_that_timed_out_names_the_setting(agent):
    message = agent.cases(0)["test_waits"].message
    assert "1500ms" in message
    assert message.endswith(" (limits.process_group = 1.5)")


def test_the_missing_rank_has_the_limit_in_its_message(agent):
    assert agent.cases(1)["test_waits"].message.startswith(
        "rank 0 waited for it; stopped 0.3 s after rank 0 failed (limits.peer_grace), in the call of this test"
    )


def test_another_error_names_no_limit(agent):
    assert agent.cases(0)["test_fails_of_itself"].message == "RuntimeError: 1500 items"


def test_a_process_group_that_is_not_created_in_time_names_its_limit(run_agent):
    limits = {"process_group": 1.5, "peer_grace": 0.3}
    late = run_agent({"conftest.py": DELAYED, "test_it.py": SUITE}, limits=limits, pytest_args=("-k", "joins"))
    messages = [case["test_joins_too_late"].message for case in (late.cases(0), late.cases(1))]
    assert messages[0].startswith("the process group could not be created within 1.5 s (limits.process_group): ")
    assert messages[1].startswith("rank 0 waited for it; stopped 0.3 s after rank 0 errored (limits.peer_grace)")


@pytest.mark.parametrize(
    ("message", "is_named"),
    [
        ("RuntimeError: [unbound_buffer.cc:84] Timed out waiting 8000ms for recv operation to complete", True),
        ("DistBackendError: WorkNCCL(SeqNum=2, OpType=ALLREDUCE, Timeout(ms)=8000) ran for 8001 milliseconds", True),
        ("DistStoreError: wait timeout after 8000ms, keys: /x", True),
        ("AssertionError: boom; then RuntimeError: Timed out waiting 8000ms for send operation to complete.", True),
        ("RuntimeError: Timed out waiting 18000ms for recv operation to complete", False),
        ("RuntimeError: Timed out waiting 800ms for recv operation to complete", False),
        ("RuntimeError: not finished after 8 s", False),
        ("AssertionError: 8000 == 8001", False),
    ],
)
def test_a_message_with_the_limit_of_the_group_names_its_setting(message, is_named):
    named = with_group_limit(message, TimeLimit(value=8, setting="half of --ranks-timeout"))
    assert named == (f"{message.rstrip('.')} (half of --ranks-timeout = 8)" if is_named else message)

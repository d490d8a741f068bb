"""Unmatched calls of a test in a class that keeps its ranks are its own error, and do not affect other tests."""

import pytest
from long_lists import quick

HEAD = """
import contextlib
from datetime import timedelta
import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcContinuousTest

class TestKept(MultiProcContinuousTest):
    world_size = 2

    @classmethod
    def backend_str(cls):
        return "gloo"

    def test_a_leaves_something(self):
        global kept
        {}

    def test_b_is_innocent(self):
        tensor = torch.full((1,), self.rank + 1.0)
        dist.all_reduce(tensor)
        assert tensor.item() == 3
        if self.rank == 0:
            dist.send(torch.full((1,), 7.0), dst=1)
        else:
            dist.recv(tensor, src=0)
            assert tensor.item() == 7
"""

LEFT = [
    ("if self.rank == 0: kept = dist.isend(torch.ones(1), dst=1)", "rank 0 sent 1 message that rank 1 did not receive"),
    ("if self.rank == 1: kept = dist.irecv(torch.ones(1), src=0)", "rank 1 waits for 1 message that rank 0 did not"),
    ("if self.rank == 0: kept = dist.all_reduce(torch.ones(1), async_op=True)", "rank 0 called all_reduce once"),
    (
        "if self.rank == 1: kept = dist.barrier(async_op=True)",
        "rank 1 called barrier once in the default group",
    ),
    ("self.rank or dist.isend(torch.ones(1), dst=1, tag=5)", "rank 0 sent 1 message that rank 1 did not receive"),
]


@pytest.mark.parametrize(("left", "message"), quick(1, LEFT))
def test_calls_of_ranks_that_a_class_keeps_are_compared(run_agent, left, message):
    agent = run_agent({"test_kept.py": HEAD.format(left)})
    assert agent.outcomes("test_b_is_innocent") == ("passed", "passed")
    found = [agent.cases(rank)["test_a_leaves_something"] for rank in (0, 1)]
    assert message in " ".join(case.message for case in found if case.is_bad)


INNOCENT = [
    "dist.barrier()",
    "dist.send(torch.ones(1), dst=1) if self.rank == 0 else dist.recv(torch.ones(1), src=0)",
    "with contextlib.suppress(RuntimeError): dist.irecv(torch.ones(1), 1 - self.rank).wait(timedelta(seconds=0.3))",
]


@pytest.mark.thorough
@pytest.mark.parametrize("call", quick(1, INNOCENT))
def test_calls_that_match_or_raised_as_expected_are_no_error(run_agent, call):
    agent = run_agent({"test_kept.py": HEAD.format(call)})
    assert agent.outcomes("test_a_leaves_something") == ("passed", "passed")
    assert agent.outcomes("test_b_is_innocent") == ("passed", "passed")

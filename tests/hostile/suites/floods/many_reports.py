"""Rank 1 reports the same phase 20,000 times."""

import pytest

TRUTH = {"tests": {"test_attack": ["honest|timed_out", "any"]}}


def test_attack(rank, request):
    if rank == 1:
        call = pytest.CallInfo.from_call(lambda: None, when="call")
        report = pytest.TestReport.from_item_and_call(request.node, call)
        for _ in range(20_000):
            request.config.hook.pytest_runtest_logreport(report=report)

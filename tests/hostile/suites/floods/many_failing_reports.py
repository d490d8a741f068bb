"""Rank 1 reports 2,000 failures of 100 kB each, of one test."""

import pytest

TRUTH = {"tests": {"test_attack": ["honest|timed_out", "bad"]}}


def fail():
    raise AssertionError("x" * 100_000)


@pytest.mark.time_limit(30)
def test_attack(rank, request):
    if rank == 1:
        call = pytest.CallInfo.from_call(fail, when="call")
        report = pytest.TestReport.from_item_and_call(request.node, call)
        for _ in range(2000):
            request.config.hook.pytest_runtest_logreport(report=report)

"""Rank 1 calls pytest's hook with reports by which the tests before and after this one have passed."""

import pytest

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank, request):
    if rank == 1:
        for item in request.session.items:
            for when in ("setup", "call", "teardown"):
                call = pytest.CallInfo.from_call(lambda: None, when=when)
                report = pytest.TestReport.from_item_and_call(item, call)
                request.config.hook.pytest_runtest_logreport(report=report)

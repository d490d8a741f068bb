"""Rank 1 reports a pass of tests that nobody has collected."""

import pytest

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank, request):
    if rank == 1:
        for nodeid in ("ghost.py::test_ghost", "", "::", "test_1_attack.py::test_attack::call"):
            call = pytest.CallInfo.from_call(lambda: None, when="call")
            report = pytest.TestReport.from_item_and_call(request.node, call)
            report.nodeid = nodeid
            request.config.hook.pytest_runtest_logreport(report=report)

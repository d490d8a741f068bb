"""A forked child calls pytest's hook with a report by which the test of rank 1 has passed; rank 1 fails."""

import os

import pytest

TRUTH = {"tests": {"test_attack": ["honest", "bad"]}}


def test_attack(rank, request):
    if rank == 1:
        child = os.fork()
        if child == 0:
            for when in ("setup", "call", "teardown"):
                call = pytest.CallInfo.from_call(lambda: None, when=when)
                report = pytest.TestReport.from_item_and_call(request.node, call)
                request.config.hook.pytest_runtest_logreport(report=report)
            os._exit(0)
        os.waitpid(child, 0)
        raise AssertionError

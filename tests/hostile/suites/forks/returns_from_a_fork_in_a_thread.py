"""A thread of rank 1 forks, and the child calls what reports a pass; the rank fails."""

import os
import threading

import pytest

TRUTH = {"tests": {"test_attack": ["honest", "bad"]}}


def test_attack(rank, request):
    if rank == 1:
        thread = threading.Thread(target=fork, args=(request,))
        thread.start()
        thread.join()
        raise AssertionError


def fork(request):
    child = os.fork()
    if child == 0:
        call = pytest.CallInfo.from_call(lambda: None, when="call")
        report = pytest.TestReport.from_item_and_call(request.node, call)
        request.config.hook.pytest_runtest_logreport(report=report)
        return
    os.waitpid(child, 0)

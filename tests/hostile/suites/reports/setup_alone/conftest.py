"""Tests that are named attack are set up and torn down, and never called."""

import pytest


def pytest_runtest_protocol(item):
    if item.name != "test_attack":
        return None
    for when in ("setup", "teardown"):
        report = pytest.TestReport.from_item_and_call(item, pytest.CallInfo.from_call(lambda: None, when=when))
        item.ihook.pytest_runtest_logreport(report=report)
    return True

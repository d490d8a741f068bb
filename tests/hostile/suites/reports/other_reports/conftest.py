"""On rank 1, each report is another thing than a report, another in each test."""

import os
import types

import pytest

OTHER = (7, "passed", {}, object(), types.SimpleNamespace(outcome="passed", when="call", nodeid="x"), [None])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item):
    report = yield
    is_attack = os.environ["RANK"] == "1" and item.name.startswith("test_attack")
    return OTHER[item.callspec.params["number"]] if is_attack else report

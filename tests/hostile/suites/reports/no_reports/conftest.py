"""On rank 1, no phase has a report."""

import os

import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item):
    report = yield
    return None if os.environ["RANK"] == "1" and item.name == "test_attack" else report

"""On rank 1, reports name the test that has failed."""

import os

import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item):
    report = yield
    if os.environ["RANK"] == "1" and item.name == "test_attack":
        report.nodeid = next(other.nodeid for other in item.session.items if other.name == "test_victim")
    return report

"""A hook that lets no test be expected to fail, as before a release."""

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    report = yield
    if hasattr(report, "wasxfail"):
        report.outcome = "failed"
    return report

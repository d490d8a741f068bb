"""Rank 1 makes pytest report a pass of whatever it runs."""

import pytest
from _pytest import reports, runner

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank):
    if rank == 1:
        genuine = reports.TestReport.from_item_and_call

        def passed(item, call):
            report = genuine(item, pytest.CallInfo.from_call(lambda: None, when=call.when))
            report.outcome = "passed"
            return report

        reports.TestReport.from_item_and_call = passed
        runner.call_and_report = lambda item, when, *_, **__: passed(item, pytest.CallInfo.from_call(int, when))

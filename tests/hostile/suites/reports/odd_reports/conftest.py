"""On rank 1, reports have what no report has, another in each test."""

import os

import pytest

ODD = (
    {"duration": None},
    {"duration": "long"},
    {"duration": float("nan")},
    {"duration": -1e300},
    {"outcome": None},
    {"outcome": 5},
    {"outcome": "PASSED"},
    {"outcome": "rerun"},
    {"outcome": ["failed"]},
    {"nodeid": None},
    {"nodeid": 7},
    {"when": None},
    {"when": "later"},
    {"longrepr": object()},
    {"longrepr": 7, "outcome": "failed"},
    {"longrepr": ("a", "b"), "outcome": "skipped"},
    {"sections": [(b"x", None)]},
    {"sections": None},
    {"user_properties": [("a",), 7]},
    {"keywords": None},
    {"start": None, "stop": "then"},
)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item):
    report = yield
    if os.environ["RANK"] == "1" and item.name.startswith("test_attack"):
        vars(report).update(ODD[item.callspec.params["number"]])
    return report

"""Hooks that raise on rank 1."""

import os
import socket
import sys

import pytest

socket.setdefaulttimeout(0.2)


def on_rank_1(nodeid, name):
    return os.environ.get("RANK") == "1" and nodeid.endswith(name)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    if on_rank_1(item.nodeid, "test_of_the_protocol"):
        msg = "in the protocol"
        raise ValueError(msg)
    if on_rank_1(item.nodeid, "test_of_an_exit"):
        sys.exit(77)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if on_rank_1(item.nodeid, "test_of_the_report") and call.when == "call":
        msg = "in the report"
        raise ValueError(msg)
    return report


def pytest_runtest_logreport(report):
    if on_rank_1(report.nodeid, "test_of_the_log") and report.when == "call":
        msg = "in the log"
        raise ValueError(msg)

"""Each hook that runs in ranks raises, on rank 1 and in its attack."""

import os


def _attack(name):
    if os.environ.get("RANK") == "1" and "test_attack" in name:
        raise RuntimeError(name)


def pytest_runtest_logstart(nodeid):
    _attack(nodeid)


def pytest_runtest_logfinish(nodeid):
    _attack(nodeid)


def pytest_runtest_logreport(report):
    _attack(report.nodeid)

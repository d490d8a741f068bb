"""The id of a test depends on the rank that runs it."""

import os

import reach


def pytest_runtest_setup(item):
    if item.name == "test_attack" and os.environ["RANK"] == "1":
        reach.rename(item, f"{item.nodeid}-of-rank-1")

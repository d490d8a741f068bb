"""A plugin for a plain pytest: torch's launcher tests, unmodified, with ranks that are forks.

``pytest -p allranks.harness.plugin`` in any repository has the tests of torch's ``MultiProcessTestCase`` and
``MultiProcContinuousTest`` start their ranks by a fork of the process that runs pytest, which has imported all that
they need, instead of by spawn, and judges them by all ranks. There is no matrix, no agent and no container in it.
"""

import warnings

import pytest

from allranks.harness import linux
from allranks.harness.collection.marker_options import is_launcher
from allranks.harness.torch_cases.adapt import adapt_torch_cases

MANY_TESTS = 30
"""Launcher tests from which on it pays to make their forks cheaper, which takes the better part of a second."""


def pytest_configure(config: pytest.Config) -> None:
    """Know the marker that says how long the ranks of a test may take."""
    config.addinivalue_line("markers", "time_limit(seconds): seconds that the ranks of a launcher test get")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Make forks of this process cheaper where there are going to be many."""
    if sum(map(is_launcher, session.items)) >= MANY_TESTS:
        linux.gather_into_huge_pages()


def pytest_collectstart() -> None:
    """Adapt torch's test cases as soon as a module has imported them, before pytest makes an object of one."""
    for text in adapt_torch_cases():
        warnings.warn(text, pytest.PytestWarning, stacklevel=1)

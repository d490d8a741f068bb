"""A plugin for a plain pytest: launcher tests of torch and DeepSpeed, unmodified, with ranks that are forks.

``pytest -p allranks.agent.plugin`` works in any repository: tests of torch's ``MultiProcessTestCase`` and
``MultiProcContinuousTest``, and of DeepSpeed's ``DistributedTest``, fork their ranks from the pytest process, which has
imported all that they need, instead of spawning them, and are judged by all ranks. It needs no matrix, agent or
container.
"""

import warnings

import pytest

from allranks.agent import linux
from allranks.agent.launch.adapt import adapt_collected, adapt_torch_cases
from allranks.agent.rank.marker_options import is_launcher
from allranks.protocol.refusals import too_old

MANY_TESTS = 30
"""From this many launcher tests on, making forks cheaper pays; it takes the better part of a second."""


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a pytest that is too old, and register the marker that limits the time of a test's ranks."""
    if refusal := too_old(pytest.__version__):
        raise pytest.UsageError(refusal)
    config.addinivalue_line("markers", "time_limit(seconds): seconds that the ranks of a launcher test get")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Make forks of this process cheaper if there will be many."""
    if sum(map(is_launcher, session.items)) >= MANY_TESTS:
        linux.gather_into_huge_pages()


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Adapt torch's test cases once a module has imported them, before pytest makes an object of one."""
    for text in adapt_torch_cases():
        warnings.warn(text, pytest.PytestWarning, stacklevel=1)
    adapt_collected(collector.obj if isinstance(collector, pytest.Class) else None)

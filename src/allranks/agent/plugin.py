"""A plugin for plain pytest that forks the ranks of torch's and DeepSpeed's tests instead of spawning them.

``pytest -p allranks.agent.plugin`` works in any repository. Unmodified tests of torch's ``MultiProcessTestCase`` and
``MultiProcContinuousTest``, and of DeepSpeed's ``DistributedTest``, fork their ranks from the pytest process, which has
already imported everything. All ranks decide the outcome. It needs no matrix, agent or container.
"""

import warnings

import pytest

from allranks.agent import linux
from allranks.agent.launch.adapt import adapt_collected, adapt_torch_cases
from allranks.agent.rank.marker_options import is_launcher
from allranks.protocol.refusals import too_old

MANY_TESTS = 30
"""From this number of multi-process tests on, it pays to make forks cheaper, which takes almost a second."""


def pytest_configure(config: pytest.Config) -> None:
    """Reject a pytest that is too old, and register the ``time_limit`` marker."""
    if refusal := too_old(pytest.__version__):
        raise pytest.UsageError(refusal)
    config.addinivalue_line("markers", "time_limit(seconds): time limit for the ranks of a multi-process test")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Make forks of this process cheaper if there are many tests."""
    if sum(map(is_launcher, session.items)) >= MANY_TESTS:
        linux.gather_into_huge_pages()


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Adapt torch's test cases after a module has imported them, before pytest instantiates one."""
    for text in adapt_torch_cases():
        warnings.warn(text, pytest.PytestWarning, stacklevel=1)
    adapt_collected(collector.obj if isinstance(collector, pytest.Class) else None)

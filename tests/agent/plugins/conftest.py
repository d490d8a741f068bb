import os
import sys

import pytest


@pytest.fixture
def start_with(plugins, start_command):
    """Starts an agent, which waits for ``go()``, with some plugins loaded, by the names of their entry points."""

    def start(names, files, *arguments, **changes):
        loaded = [word for name in names for word in ("-p", name)]
        environment = {"PYTHONPATH": os.pathsep.join([plugins, *sys.path]), **changes.pop("environment", {})}
        return start_command(files, pytest_args=(*loaded, *arguments), environment=environment, **changes)

    return start


@pytest.fixture
def run_with(start_with):
    """Runs such an agent to its end."""

    def run(names, files, *arguments, **changes):
        agent = start_with(names, files, *arguments, **changes).go()
        assert agent.wait() == 0, agent.log
        return agent

    return run

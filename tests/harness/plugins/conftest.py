import os
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def plugins():
    """The folder that `nox -s tests` installs other people's plugins into: our own tests must not load them."""
    folder = os.environ.get("ALLRANKS_TEST_PLUGINS")
    if not folder:
        pytest.skip("ALLRANKS_TEST_PLUGINS names no folder of plugins; nox -s tests makes one")
    assert Path(folder).is_dir()
    return folder


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

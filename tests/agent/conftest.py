import functools
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the helpers, which pytest's importlib mode does not find

from agent_fixtures import agent_fork_server, agents_in, launch_fork, run_agent, run_once, start_agent  # noqa: F401 - fixtures
from agent_run import AgentRun, launch_command


@pytest.fixture
def start_command(tmp_path):
    """Start an agent with the entry point of jobs, which imports torch."""
    runs = []

    def start(files, **changes):
        run = AgentRun(tmp_path, files, launch_command, **changes)
        runs.append(run)
        return run

    yield start
    for run in runs:
        run.close()


@pytest.fixture(scope="module")
def run_command(tmp_path_factory):
    """Run agents with the entry point of jobs."""
    with agents_in(tmp_path_factory, launch_command) as run:
        yield functools.partial(run, "agent")

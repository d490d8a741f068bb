"""Fixtures that run agents, for the conftest files of several folders."""

import functools
from contextlib import contextmanager

import pytest
from agent_fork_server import AgentForkServer
from agent_run import AgentRun
from nodes_run import NodesRun


@pytest.fixture(scope="session")
def agent_fork_server():
    """The process that forks agents for all tests."""
    server = AgentForkServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def launch_fork(agent_fork_server):
    """Start an agent as a fork that has already imported torch."""

    def launch(arguments, environment, folder, stdin, stdout):
        pid = agent_fork_server.start(arguments, environment, folder, stdin, stdout)
        return pid, functools.partial(agent_fork_server.exit_status, pid)

    return launch


@pytest.fixture
def start_agent(tmp_path, launch_fork):
    """Start an agent on some files; it waits for ``go()``."""
    runs = []

    def start(files, **changes):
        run = AgentRun(tmp_path, files, launch_fork, **changes)
        runs.append(run)
        return run

    yield start
    for run in runs:
        run.close()


@pytest.fixture
def run_agent(start_agent):
    """Run an agent on some files to its end."""

    def run(files, **changes):
        agent = start_agent(files, **changes).go()
        assert agent.wait() == 0, agent.log
        return agent

    return run


@contextmanager
def agents_in(tmp_path_factory, launch):
    """A function that runs an agent to its end in a new folder with the given name."""
    runs = []

    def run(name, files, **changes):
        agent = AgentRun(tmp_path_factory.mktemp(name), files, launch, **changes).go()
        runs.append(agent)
        assert agent.wait() == 0, agent.log
        return agent

    yield run
    for agent in runs:
        agent.close()


@pytest.fixture(scope="session")
def run_once(tmp_path_factory, launch_fork):
    """Run an agent on a suite whose outcomes several tests check."""
    with agents_in(tmp_path_factory, launch_fork) as run:
        yield run


@pytest.fixture
def start_nodes(tmp_path, launch_fork):
    """Start two agents on some files; the job waits for ``go()``."""
    runs = []

    def start(files, **changes):
        run = NodesRun(tmp_path, files if isinstance(files, dict) else {"test_it.py": files}, launch_fork, **changes)
        runs.append(run)
        return run

    yield start
    for run in runs:
        run.close()


@pytest.fixture
def run_nodes(start_nodes):
    """Run two agents on some files to their end."""

    def run(files, **changes):
        job = start_nodes(files, **changes).go()
        assert job.finish() == (0, 0), f"{job.story}\n{job.follower.story}"
        job.assert_nothing_left()
        return job.come_home()

    return run

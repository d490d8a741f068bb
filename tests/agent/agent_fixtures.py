"""Fixtures that run agents, for the conftest files of several folders."""

import functools
from contextlib import contextmanager

import pytest
from agent_nursery import Nursery
from agent_run import AgentRun
from nodes_run import NodesRun


@pytest.fixture(scope="session")
def nursery():
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture(scope="session")
def launch_fork(nursery):
    """Starts an agent by a fork that has imported torch already."""

    def launch(arguments, environment, folder, stdin, stdout):
        pid = nursery.start(arguments, environment, folder, stdin, stdout)
        return pid, functools.partial(nursery.exit_status, pid)

    return launch


@pytest.fixture
def start_agent(tmp_path, launch_fork):
    """Starts an agent on some files; it waits for ``go()``."""
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
    """Runs an agent on some files to its end."""

    def run(files, **changes):
        agent = start_agent(files, **changes).go()
        assert agent.wait() == 0, agent.log
        return agent

    return run


@contextmanager
def agents_in(tmp_path_factory, launch):
    """A function that runs an agent to its end in a folder of its own, whose name it takes first."""
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
    """Runs an agent on a suite whose outcomes several tests look at."""
    with agents_in(tmp_path_factory, launch_fork) as run:
        yield run


@pytest.fixture
def start_nodes(tmp_path, launch_fork):
    """Starts two agents on some files; the job waits for ``go()``."""
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
    """Runs two agents on some files to their end."""

    def run(files, **changes):
        job = start_nodes(files, **changes).go()
        assert job.finish() == (0, 0), f"{job.story}\n{job.follower.story}"
        job.assert_nothing_left()
        return job.come_home()

    return run

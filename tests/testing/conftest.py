import functools
import sys
from pathlib import Path

import pytest
import torch

# The helpers that run real agents, which pytest does not find in importlib mode.
sys.path.insert(0, str(Path(__file__).parents[1] / "agent"))

from agent_fork_server import AgentForkServer
from agent_run import AgentRun

from allranks.agent.environment_skips import EnvironmentSkip

CELL_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "BACKEND",
    "INIT_METHOD",
    "ALLRANKS_GPU_COUNT",
    "ALLRANKS_GANG",
    "ALLRANKS_SEED",
    "ALLRANKS_SHARED",
)


@pytest.fixture
def no_cell(monkeypatch):
    """Remove the environment variables of a cell."""
    for name in CELL_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def cell(monkeypatch, no_cell):  # noqa: ARG001 - removes other variables
    """``cell(WORLD_SIZE=2, ...)``: sets environment variables that an agent sets for a rank."""

    def set_cell(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))

    return set_cell


@pytest.fixture
def gpus(monkeypatch):
    """``gpus(2)``: makes torch report this number of GPUs."""

    def set_gpus(count):
        for module in (torch.cuda, torch.accelerator):
            monkeypatch.setattr(module, "is_available", lambda: count > 0)
            monkeypatch.setattr(module, "device_count", lambda: count)

    return set_gpus


@pytest.fixture
def skip_of():
    """``skip_of(requirement)``: the skip that the requirement raises."""

    def get(requirement):
        with pytest.raises(EnvironmentSkip) as caught:
            requirement.check()
        return caught.value

    return get


@pytest.fixture(scope="session")
def agent_fork_server():
    """The process that forks agents for all tests."""
    server = AgentForkServer()
    yield server
    server.close()


@pytest.fixture
def run_gang(tmp_path, agent_fork_server):
    """``run_gang({"test_it.py": ...}, world_size=3)``: runs a suite in real ranks; returns the ended agent."""
    runs = []

    def launch(arguments, environment, folder, stdin, stdout):
        pid = agent_fork_server.start(arguments, environment, folder, stdin, stdout)
        return pid, functools.partial(agent_fork_server.exit_status, pid)

    def run(files, **changes):
        environment = {"ALLRANKS_SHARED": str(tmp_path / "shared" / "gang"), **changes.pop("environment", {})}
        agent = AgentRun(tmp_path, files, launch, environment=environment, **changes).go()
        runs.append(agent)
        assert agent.wait() == 0, agent.log
        return agent

    yield run
    for agent in runs:
        agent.close()

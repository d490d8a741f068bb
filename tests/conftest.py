"""What tests of several folders share: a Docker daemon, locks of the test's own, and values to start from."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import docker
from allranks.engine import ownership
from allranks.engine.spec import JobSpec, resources
from allranks.harness.config import AgentConfig, TimeLimits

REQUIRE_DOCKER = "ALLRANKS_REQUIRE_DOCKER"

MakeSpec = Callable[..., JobSpec]


@pytest.fixture(scope="session")
def docker_client() -> Iterator[docker.DockerClient]:
    """A client of the daemon; without one its tests are skipped, or fail where a daemon is required."""
    try:
        client = docker.from_env()
        client.ping()
    except (docker.errors.DockerException, OSError) as error:
        reason = f"no Docker daemon answers: {error}"
        if os.environ.get(REQUIRE_DOCKER):
            pytest.fail(reason)
        pytest.skip(reason)
    yield client
    client.close()


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lock folder of the test's own."""
    folder = tmp_path / "locks"
    folder.mkdir()
    monkeypatch.setattr(ownership, "lock_folder", lambda: folder)
    monkeypatch.setattr("allranks.schedule.gpus.lock_folder", lambda: folder)
    return folder


@pytest.fixture
def make_spec(tmp_path: Path) -> MakeSpec:
    """``make_spec(path="suite", world_size=2, run_id=..., ...)``: a job over gloo."""
    agent = AgentConfig(
        cell="gloo-w2-g0-env",
        suite="tiny",
        path="suite",
        backend="gloo",
        world_size=2,
        gpu_count=0,
        init_method="env",
        isolation="job",
        limits=TimeLimits(process_group=20, test=15, job=60, peer_grace=1),
        seed=1,
    )
    spec = JobSpec(
        run_id="20260101T000000Z-abcdef",
        job_id="gloo-w2-g0-env/tiny",
        attempt=1,
        agent=agent,
        code=tmp_path / "code",
        resources=resources(world_size=2, memory_mib=None, seconds=60),
    )

    def make(**changes: object) -> JobSpec:
        fields = AgentConfig.__dataclass_fields__
        own = {name: value for name, value in changes.items() if name in fields}
        rest = {name: value for name, value in changes.items() if name not in fields}
        return replace(spec, agent=replace(agent, **own), **rest)

    return make

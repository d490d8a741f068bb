"""Starts the selected faults of an engine at once, side by side, so that each test only waits for its own."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

# The helpers, which pytest's importlib mode does not find, and those of the suite of test_styles.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parent / "styles"))

from declaration import CLUSTER, Fault
from services import services_of, why_missing
from side_by_side import Outcome, SideBySide
from trial_cluster import use_cluster

collect_ignore = ["suites", "styles"]


Ended = Callable[[Fault], Outcome]
"""Waits for the run of a fault."""


@pytest.fixture(scope="session")
def ended(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    """The runs on the process engine, all of which begin with the first test that wants one."""
    with SideBySide(tmp_path_factory.mktemp("faults")) as side_by_side:
        yield _start(side_by_side, request.session, "process")


@pytest.fixture(scope="session")
def ended_in_containers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    """The runs in containers."""
    with SideBySide(tmp_path_factory.mktemp("faults")) as side_by_side:
        yield _start(side_by_side, request.session, "docker")


@pytest.fixture(scope="session")
def ended_on_a_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, slurm_cluster
) -> Iterator[Ended]:
    """The runs on a SLURM cluster."""
    with use_cluster(slurm_cluster.folder), SideBySide(tmp_path_factory.mktemp("faults")) as side_by_side:
        yield _start(side_by_side, request.session, CLUSTER)


def _start(side_by_side: SideBySide, session: pytest.Session, engine: str) -> Ended:
    wanted = list(_wanted(session, engine))
    runs = side_by_side.start((fault, engine) for fault in wanted)
    by_name: dict[str, Future[Outcome]] = {fault.name: run for fault, run in zip(wanted, runs, strict=True)}
    return lambda fault: by_name[fault.name].result()


def _wanted(session: pytest.Session, engine: str) -> Iterator[Fault]:
    """The faults of the selected tests of an engine, without those that will be skipped."""
    for item in session.items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        fault = parameters.get("fault")
        if isinstance(fault, Fault) and _engine_of(item) == engine and not any(map(why_missing, services_of(item))):
            yield fault


def _engine_of(item: pytest.Item) -> str:
    return next((name for name in ("docker", CLUSTER) if item.get_closest_marker(name)), "process")

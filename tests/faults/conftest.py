"""Begins every selected fault at once, side by side, so that each test only waits for its own."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the helpers, which pytest's importlib mode does not find

from declaration import CLUSTER, Fault
from fault_run import why_not_here
from side_by_side import Outcome, SideBySide
from trial_cluster import use_cluster

collect_ignore = ["suites"]


@pytest.fixture(scope="session")
def ended(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Outcome]]:
    """Wait for the run of a fault on an engine."""
    wanted = [each for each in _wanted(request.session) if each[1] != CLUSTER]
    with SideBySide(tmp_path_factory.mktemp("faults")) as side_by_side:
        yield _waiting(side_by_side, wanted)


@pytest.fixture(scope="session")
def ended_on_a_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Fault], Outcome]]:
    """Wait for the run of a fault on a SLURM cluster; none begins before the first test that wants one."""
    cluster = request.getfixturevalue("slurm_cluster")
    wanted = [each for each in _wanted(request.session) if each[1] == CLUSTER]
    with use_cluster(cluster.folder), SideBySide(tmp_path_factory.mktemp("faults")) as side_by_side:
        ended = _waiting(side_by_side, wanted)
        yield lambda fault: ended(fault, CLUSTER)


def _waiting(side_by_side: SideBySide, wanted: list[tuple[Fault, str]]) -> Callable[[Fault, str], Outcome]:
    runs: dict[tuple[str, str], Future[Outcome]] = {
        (fault.name, engine): run for (fault, engine), run in zip(wanted, side_by_side.start(wanted), strict=True)
    }
    return lambda fault, engine: runs[fault.name, engine].result()


def _wanted(session: pytest.Session) -> Iterator[tuple[Fault, str]]:
    for item in session.items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if isinstance(fault := parameters.get("fault"), Fault):
            engine = next((name for name in ("docker", CLUSTER) if item.get_closest_marker(name)), "process")
            if not why_not_here(fault, engine):
                yield fault, engine

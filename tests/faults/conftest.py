"""Begins every selected fault at once, side by side, so that each test only waits for its own."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the helpers, which pytest's importlib mode does not find

from declaration import Fault
from fault_run import why_not_here
from side_by_side import Outcome, SideBySide

collect_ignore = ["suites"]


@pytest.fixture(scope="session")
def ended(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Outcome]]:
    """Wait for the run of a fault on an engine."""
    wanted = list(_wanted(request.session))
    with SideBySide(tmp_path_factory.mktemp("faults")) as side_by_side:
        runs: dict[tuple[str, str], Future[Outcome]] = {
            (fault.name, engine): run for (fault, engine), run in zip(wanted, side_by_side.start(wanted), strict=True)
        }
        yield lambda fault, engine: runs[fault.name, engine].result()


def _wanted(session: pytest.Session) -> Iterator[tuple[Fault, str]]:
    for item in session.items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if isinstance(fault := parameters.get("fault"), Fault):
            engine = "docker" if item.get_closest_marker("docker") else "process"
            if not why_not_here(fault, engine):
                yield fault, engine

"""Runs the wanted cases of equal surroundings together, when the first of their tests asks for its own."""

import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))  # the helpers, which importlib mode does not find
sys.path.insert(0, str(Path(__file__).parent))

from hostile_run import Outcome, run_cases
from truth import Hostile

collect_ignore = ["suites", "common"]

TOGETHER = 20
"""Cases in one run."""


WRONG = pytest.StashKey[list[Outcome]]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """A line for each case that did not come to what is true."""
    for outcome in config.stash.get(WRONG, []):
        first, *more = outcome.wrong
        others = f" (and {len(more)} more)" if more else ""
        terminalreporter.line(f"{outcome.engine:7} {outcome.case.kind:9} {outcome.case.name:36} {first}{others}")


@pytest.fixture(scope="session")
def ended(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Outcome]:
    """``ended(case, engine)``: wait for what a case comes to on an engine."""
    groups = _groups(request.session)
    request.config.stash[WRONG] = []
    outcomes: dict[tuple[str, str], Outcome] = {}

    def outcome(case: Hostile, engine: str) -> Outcome:
        if (case.name, engine) not in outcomes:
            group = next(group for group in groups[engine] if case in group)
            for ended_case in run_cases(group, engine, tmp_path_factory.mktemp("hostile")):
                outcomes[ended_case.case.name, engine] = ended_case
                request.config.stash[WRONG] += [ended_case] if ended_case.wrong else []
        return outcomes[case.name, engine]

    return outcome


def _groups(session: pytest.Session) -> dict[str, list[list[Hostile]]]:
    """The wanted cases by engine, in groups that run together."""
    wanted: dict[tuple[object, ...], list[Hostile]] = defaultdict(list)
    for item in session.items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if isinstance(case := parameters.get("case"), Hostile):
            engine = "docker" if item.get_closest_marker("docker") else "process"
            wanted[engine, case.surroundings].append(case)
    groups: dict[str, list[list[Hostile]]] = defaultdict(list)
    for (engine, _), cases in wanted.items():
        groups[str(engine)] += [cases[start : start + TOGETHER] for start in range(0, len(cases), TOGETHER)]
    return groups

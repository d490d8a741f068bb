"""No hostile case changes what was reported before it, what others report, or makes green what is absent.

A sample of each kind runs each time; `nox -s hostile` runs all, and names after it (`-- NAME ...`) run those.
"""

from collections.abc import Callable

import pytest
from hostile_run import Outcome
from truth import Hostile, asked_for, read_all

pytestmark = pytest.mark.alone


def of(engine: str) -> list[Hostile]:
    return [case for case in asked_for() if engine in case.engines]


@pytest.mark.parametrize("case", of("process"), ids=lambda case: f"{case.kind}-{case.name}")
def test_on_the_process_engine(case: Hostile, ended: Callable[[Hostile, str], Outcome]):
    outcome = ended(case, "process")
    assert not outcome.wrong, outcome.details


@pytest.mark.docker
@pytest.mark.parametrize("case", of("docker"), ids=lambda case: f"{case.kind}-{case.name}")
def test_in_containers(case: Hostile, ended: Callable[[Hostile, str], Outcome]):
    outcome = ended(case, "docker")
    assert not outcome.wrong, outcome.details


def test_there_are_sixty_cases_on_each_engine_and_a_sample_of_each_kind():
    every = read_all().values()
    for engine in ("process", "docker"):
        assert sum(engine in case.engines for case in every) >= 60
    assert {case.kind for case in every} == {case.kind for case in every if case.is_sample}

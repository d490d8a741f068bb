"""The bodies as plain pytest functions, each as often as the benchmark asks for."""

import os

import pytest

from .bodies import BODIES


@pytest.mark.parametrize("copy", range(int(os.environ["BENCHMARK_COPIES"])))
@pytest.mark.parametrize("name", BODIES)
def test_body(name: str, copy: int) -> None:
    """One body, whatever the number of its copy."""
    del copy
    BODIES[name]()

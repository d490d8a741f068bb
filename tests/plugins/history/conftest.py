"""Runs that are merged into one history."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from allranks.report.judged import MergedRun
from allranks.report.merging import merge

JOB = "gloo-w2-g0-env/suite"


@pytest.fixture
def merged(tmp_path: Path, part: Callable[[str], Any]) -> Callable[..., MergedRun]:
    """Merges a run with these outcomes of tests, on both ranks or as said, into a history."""

    def make(number: int, tests: Mapping[str, Any], *, job: str = JOB, run_id: str = "", size: int = 2) -> MergedRun:
        name = run_id or f"r{number}"
        folder = part(f"{name}-{number}")
        folder.manifest(job, run_id=name)
        folder.job(job, collected=list(tests), started=1e9 + 86400 * number, run_id=name, world_size=size)
        for rank in range(size):
            said = {test: outcome[rank] if isinstance(outcome, tuple) else outcome for test, outcome in tests.items()}
            folder.rank(job, rank, said, world_size=size)
        return merge(folder.path, environ={}, history=tmp_path / "history.sqlite")

    return make

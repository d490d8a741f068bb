"""Runs that are merged into one history."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from run_folders import part, run_folder, write_ranks

from allranks.plugins.history.recorder import HistoryRecorder
from allranks.plugins.history.trends import RunHistory
from allranks.report.judged import MergedRun
from allranks.report.merging import merge

__all__ = ["part", "run_folder", "write_ranks"]

JOB = "gloo-w2-g0-env/suite"


class Recorded(NamedTuple):
    """A merged run, and its entry in the history."""

    run: MergedRun
    history: RunHistory


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Recorded]:
    """Merges a folder into a history."""
    recorded: list[RunHistory] = []
    record = HistoryRecorder.record

    def spy(recorder: HistoryRecorder, name: str) -> RunHistory:
        recorded.append(record(recorder, name))
        return recorded[-1]

    def make(folder: Path) -> Recorded:
        monkeypatch.setattr(HistoryRecorder, "record", spy)
        run = merge(folder, environ={}, observers=[HistoryRecorder(tmp_path / "history.sqlite")])
        return Recorded(run, recorded[-1])

    return make


@pytest.fixture
def merged(recorded: Callable[[Path], Recorded], part: Callable[[str], Any]) -> Callable[..., Recorded]:
    """Merges a run with these outcomes of tests, on all ranks or for each rank, into a history."""

    def make(number: int, tests: Mapping[str, Any], *, job: str = JOB, run_id: str = "", size: int = 2) -> Recorded:
        name = run_id or f"r{number}"
        folder = part(f"{name}-{number}")
        folder.manifest(job, run_id=name)
        folder.job(job, collected=list(tests), started=1e9 + 86400 * number, run_id=name, world_size=size)
        for rank in range(size):
            own = {test: outcome[rank] if isinstance(outcome, tuple) else outcome for test, outcome in tests.items()}
            folder.rank(job, rank, own, world_size=size)
        return recorded(folder.path)

    return make

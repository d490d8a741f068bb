"""Every command's test works in a small repository; runs that would begin are written down."""

import pytest

from allranks.errors import ExitCode

RUNNERS = """
[[runners]]
when = "gpu_count == 0"
labels = ["ubuntu-latest"]

[[runners]]
labels = ["self-hosted", "gpu"]
gpus = 2
engine = "process"
"""


@pytest.fixture(autouse=True)
def in_repository(repository):
    """Commands find the matrix file of this folder."""
    return repository


@pytest.fixture
def runs(monkeypatch):
    """The runs that would have begun, each as its jobs and options."""
    asked = []

    def run(_matrix, jobs, options, _say):
        asked.append(([job.id for job in jobs], options))
        return ExitCode.OK

    monkeypatch.setattr("allranks.schedule.run_jobs.run", run)
    return asked


@pytest.fixture
def runners(repository):
    """Machines without GPUs and some with two, for the repository's cells."""
    with (repository / "matrix.toml").open("a") as file:
        file.write(RUNNERS)

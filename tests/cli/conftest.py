"""Every command's test works in a small repository; runs that would begin are written down."""

import pytest

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
def runners(repository):
    """Machines without GPUs and some with two, for the repository's cells."""
    with (repository / "matrix.toml").open("a") as file:
        file.write(RUNNERS)

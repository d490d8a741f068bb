"""A small repository for tests of commands."""

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
    """Run commands in the folder of a matrix file."""
    return repository


@pytest.fixture
def runners(repository):
    """Add runners without GPUs and runners with two to the matrix file."""
    with (repository / "matrix.toml").open("a") as file:
        file.write(RUNNERS)

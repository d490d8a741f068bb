"""A matrix file to change; the folder of most tests is their own."""

import pytest

from allranks.matrix.declaration import load


@pytest.fixture(autouse=True)
def in_repository():
    """Unlike commands of other plug-ins, few tests here need a repository."""


@pytest.fixture
def document(repository):
    """The text of a small matrix file."""
    return (repository / "matrix.toml").read_text()


@pytest.fixture
def load_text(repository):
    """``load_text(text)``: the matrix of a file with this text."""

    def load_written(text):
        (repository / "matrix.toml").write_text(text)
        return load(repository).matrix

    return load_written

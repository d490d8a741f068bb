"""Commands of plug-ins work in a small repository."""

import pytest


@pytest.fixture(autouse=True)
def in_repository(repository):
    """Commands find the matrix file of this folder."""
    return repository

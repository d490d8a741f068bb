import pytest


@pytest.fixture(autouse=True)
def in_repository():
    """Unlike other tests of commands, these need no repository."""

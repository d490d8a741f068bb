"""The planted fault as plain pytest functions, for allranks and for pytest-xdist."""

from collections.abc import Iterator

import pytest

from .faults import FAULT, wait_for_all


@pytest.fixture
def _torn_down() -> Iterator[None]:
    yield
    FAULT.end()


@pytest.mark.usefixtures("_torn_down")
def test_fault() -> None:
    """The fault."""
    FAULT.run()


if FAULT.judged == "test_next":

    def test_next() -> None:
        """A good test after it."""
        wait_for_all()

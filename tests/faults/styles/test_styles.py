"""Each way to start ranks, with each fault in one of them."""

import os

import faults
import pytest
import starters

ANY_OF_THEM = (Exception, SystemExit)
"""What a start function raises depends on the style."""


def each(*chosen):
    """A test for each style with each of these faults."""
    return pytest.mark.parametrize(
        ("style", "fault"),
        [
            pytest.param(style, fault, marks=pytest.mark.time_limit(starters.limit_of(style)))
            for style in os.environ["STYLES"].split()
            for fault in chosen
        ],
    )


@pytest.fixture
def folder(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


@each("raise", "exit", "kill", "hang", "peer")
def test_fails(style, fault, folder):
    starters.STYLES[style](fault, str(folder), waits=True)


@each("expected", "crash")
def test_passes(style, fault, folder):
    with pytest.raises(ANY_OF_THEM):
        starters.STYLES[style](fault, str(folder), waits=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("left")


@each("after")
class TestLeft:
    def test_leaves(self, style, fault, place):
        folder = place / style
        folder.mkdir()
        starters.STYLES[style](fault, str(folder), waits=False)
        faults.wait_for_both(folder)

    def test_next(self, style, fault, place):  # noqa: ARG002 - a parameter of both
        faults.wait_for_the_end_of_both(place / style)
        for left in starters.LEFT:
            if hasattr(left, "terminate"):
                left.terminate()
        starters.LEFT.clear()

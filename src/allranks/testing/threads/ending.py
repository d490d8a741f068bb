"""How the thread of a rank ended, and where one is that has not."""

import sys
import traceback
import unittest
from dataclasses import dataclass
from types import FrameType

import pytest

from allranks.harness.outcome import Outcome
from allranks.testing.skips.requirement import EnvironmentSkip
from allranks.testing.skips.skipcodes import SkipCode


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What became of one rank.

    Attributes:
        rank: The rank.
        outcome: ``passed``, ``failed``, ``skipped``, ``aborted`` or ``timed_out``.
        error: What it raised, if it raised something.
        place: Where it was when it was stopped; empty for a rank that ended by itself.
        is_waiting: Whether it was stopped while it waited for its peers in a collective.
        is_left: Whether its thread still runs: it is in a call that Python cannot break off.
    """

    rank: int
    outcome: Outcome
    error: BaseException | None = None
    place: str = ""
    is_waiting: bool = False
    is_left: bool = False


def ending_of(rank: int, error: BaseException | None) -> Ending:
    """The ending of a rank that ended by itself.

    An exit with one of torch's codes for skips is a skip, and every other exit a failure: a rank that leaves in the
    middle of a test has not passed it.
    """
    if error is None:
        return Ending(rank=rank, outcome=Outcome.PASSED)
    skip = _skip_of(error)
    if skip is not None:
        return Ending(rank=rank, outcome=Outcome.SKIPPED, error=skip)
    return Ending(rank=rank, outcome=Outcome.FAILED, error=error)


def _skip_of(error: BaseException) -> BaseException | None:
    if isinstance(error, unittest.SkipTest | pytest.skip.Exception):
        return error
    if isinstance(error, SystemExit) and isinstance(error.code, int) and error.code in set(SkipCode):
        return EnvironmentSkip(SkipCode(error.code))
    return None


def frame_of(thread: int | None) -> FrameType | None:
    """The innermost frame of a living thread."""
    return None if thread is None else sys._current_frames().get(thread)  # noqa: SLF001 - documented, for debuggers


def place_of(frame: FrameType | None, *, below: str) -> str:
    """``FILE:LINE in NAME`` of the innermost call in the test that is not torch's or Python's own.

    Args:
        frame: Where a thread is.
        below: The file that called the test: frames outside of the test are of no interest.
    """
    stack = traceback.extract_stack(frame) if frame is not None else []
    files = [summary.filename for summary in stack]
    start = len(files) - files[::-1].index(below) if below in files else 0
    inside = stack[start:] or stack
    own = [summary for summary in inside if not _is_library(summary.filename)] or inside
    return f"{own[-1].filename}:{own[-1].lineno} in {own[-1].name}" if own else ""


def _is_library(filename: str) -> bool:
    return "/site-packages/" in filename or filename.startswith((sys.base_prefix, sys.prefix, "<"))

"""How the threads of ranks ended, as one exception for all of them."""

import sys
import traceback
import unittest
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

import pytest

from allranks.agent.diagnose.unmatched_calls import words_for_ranks
from allranks.agent.environment_skips import EnvironmentSkip
from allranks.protocol.config import TimeLimit
from allranks.protocol.outcomes import Outcome
from allranks.protocol.skip_codes import SkipCode


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How one rank ended.

    Attributes:
        rank: The rank.
        outcome: ``passed``, ``failed``, ``skipped``, ``aborted`` or ``timed_out``.
        error: The exception that it raised, if any.
        place: Where it was when it was stopped; empty for a rank that ended by itself.
        is_waiting: Whether it was stopped while it waited for its peers in a collective.
        is_left: Whether its thread still runs, in a call that Python cannot interrupt.
        limit: The time limit of the test.
    """

    rank: int
    outcome: Outcome
    error: BaseException | None = None
    place: str = ""
    is_waiting: bool = False
    is_left: bool = False
    limit: TimeLimit | None = None


def ending_of(rank: int, error: BaseException | None) -> Ending:
    """The ending of a rank that ended by itself.

    An exit with one of torch's skip codes is a skip. Every other exit is a failure: a rank that leaves in mid-test has
    not passed.
    """
    if error is None:
        return Ending(rank=rank, outcome=Outcome.PASSED)
    if isinstance(error, SystemExit) and isinstance(error.code, int) and error.code in set(SkipCode):
        error = EnvironmentSkip(SkipCode(error.code))
    skipped = isinstance(error, unittest.SkipTest | pytest.skip.Exception)
    return Ending(rank=rank, outcome=Outcome.SKIPPED if skipped else Outcome.FAILED, error=error)


def frame_of(thread: int | None) -> FrameType | None:
    """The innermost frame of a live thread."""
    return None if thread is None else sys._current_frames().get(thread)  # noqa: SLF001 - documented, for debuggers


def place_of(frame: FrameType | None, *, below: str) -> str:
    """``FILE:LINE in NAME`` of the innermost call in the test that is not torch's or Python's own."""
    stack = traceback.extract_stack(frame) if frame is not None else []
    files = [summary.filename for summary in stack]
    start = len(files) - files[::-1].index(below) if below in files else 0
    inside = stack[start:] or stack
    own = [summary for summary in inside if not _is_library(summary.filename)] or inside
    return f"{own[-1].filename}:{own[-1].lineno} in {own[-1].name}" if own else ""


def _is_library(filename: str) -> bool:
    return "/site-packages/" in filename or filename.startswith((sys.base_prefix, sys.prefix, "<"))


class RankThreadError(AssertionError):
    """A test was bad on at least one rank that is a thread.

    Its cause is the exception of the leading rank; the tracebacks of other failed ranks are in its notes.

    Args:
        message: The leading rank and its outcome, then one line for all peers that ended alike.
        leading: The rank that was bad first.
    """

    def __init__(self, message: str, leading: int) -> None:
        self.leading = leading
        super().__init__(message)


def raise_for(endings: Sequence[Ending]) -> None:
    """Return if all ranks passed, skip if all skipped, else fail.

    Args:
        endings: How the ranks ended, in the order of their ends.

    Raises:
        RankThreadError: A rank failed or did not end; or only some ranks skipped.
        unittest.SkipTest, pytest.skip.Exception: All ranks skipped; this is the skip of the first.
        pytest.exit.Exception, KeyboardInterrupt: A rank ended the whole session.
    """
    __tracebackhide__ = True
    leading = _leading(endings)
    if leading is None:
        return
    if isinstance(leading.error, pytest.exit.Exception | KeyboardInterrupt):
        raise leading.error
    if leading.error is not None and all(ending.outcome is Outcome.SKIPPED for ending in endings):
        raise leading.error
    raise _error(leading, endings) from leading.error


def _leading(endings: Sequence[Ending]) -> Ending | None:
    """The first failed rank; else one that timed out, preferably not while waiting for its peers; else a skip."""

    def among(outcome: Outcome) -> list[Ending]:
        return [ending for ending in endings if ending.outcome is outcome]

    # All timed out at the same moment, so the order in which they were stopped is meaningless.
    timed_out = sorted(among(Outcome.TIMED_OUT), key=lambda ending: (ending.is_waiting, ending.rank))
    return next(iter([*among(Outcome.FAILED), *timed_out, *among(Outcome.SKIPPED)]), None)


def _error(leading: Ending, endings: Sequence[Ending]) -> RankThreadError:
    peers = sorted((ending for ending in endings if ending is not leading), key=lambda ending: ending.rank)
    lines = [_headline(leading, endings), *_peer_lines(peers, leading)]
    error = RankThreadError("\n".join(lines), leading.rank)
    for peer in peers:
        if peer.outcome is Outcome.FAILED and peer.error is not None and not _is_alike(peer, leading):
            error.add_note(f"rank {peer.rank}:\n{''.join(traceback.format_exception(peer.error)).rstrip()}")
    return error


def _peer_lines(peers: Sequence[Ending], leading: Ending) -> Iterator[str]:
    """One line for all peers that ended alike."""
    alike: dict[tuple[str, str], list[int]] = {}
    for peer in peers:
        alike.setdefault((_peer_words(peer, leading), _where(peer)), []).append(peer.rank)
    for (words, place), ranks in alike.items():
        subject = "it" if len(ranks) == 1 else "each"
        yield f"  {words_for_ranks(ranks)} {words}{f': {subject} {place}' if place else ''}"


def _headline(leading: Ending, endings: Sequence[Ending]) -> str:
    who = f"rank {leading.rank} of {len(endings)}"
    match leading.outcome:
        case Outcome.FAILED:
            return f"{who} failed first: {_first_line(leading.error)}"
        case Outcome.TIMED_OUT:
            limit = f": no end after {leading.limit.words()}" if leading.limit else ""
            return f"{who} timed out{limit}; it {_where(leading)}"
        case _:
            return f"ranks disagree: {who} skipped ({_first_line(leading.error)})"


def _peer_words(peer: Ending, leading: Ending) -> str:
    match peer.outcome:
        case Outcome.FAILED if _is_alike(peer, leading):
            return "failed alike"
        case Outcome.FAILED:
            return f"failed: {_first_line(peer.error)}"
        case Outcome.ABORTED:
            skipped = ", which skipped" if leading.outcome is Outcome.SKIPPED else ""
            return f"aborted by rank {leading.rank}{skipped}"
        case Outcome.TIMED_OUT:
            return "timed out"
        case Outcome.SKIPPED:
            return f"skipped: {_first_line(peer.error)}"
        case _:
            return str(peer.outcome)


def _where(ending: Ending) -> str:
    """What a rank did when it was stopped, as in "was in file:line in name"; empty if it ended by itself."""
    if ending.outcome not in {Outcome.ABORTED, Outcome.TIMED_OUT}:
        return ""
    words = "waited for its peers" if ending.is_waiting else "was"
    words += f" in {ending.place}" if ending.place else " stopped"
    return f"{words}; its thread cannot be broken off and is left" if ending.is_left else words


def _is_alike(peer: Ending, leading: Ending) -> bool:
    return _first_line(peer.error) == _first_line(leading.error)


def _first_line(error: BaseException | None) -> str:
    if isinstance(error, unittest.SkipTest | pytest.skip.Exception):
        return str(error)
    text = "" if error is None else "".join(traceback.format_exception_only(error)).strip()
    return next(iter(text.splitlines()), "")

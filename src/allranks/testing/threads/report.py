"""One exception for what several ranks came to."""

import traceback
import unittest
from collections.abc import Sequence

import pytest

from allranks.harness.outcome import Outcome
from allranks.testing.threads.ending import Ending


class RankThreadError(AssertionError):
    """A test went wrong on at least one rank that is a thread.

    Its cause is what the leading rank raised; the tracebacks of other ranks that failed are in its notes.

    Args:
        message: The leading rank and what became of it; then a line for each peer.
        leading: The rank that went first.
    """

    def __init__(self, message: str, leading: int) -> None:
        self.leading = leading
        super().__init__(message)


def raise_for(endings: Sequence[Ending]) -> None:
    """Return when all ranks passed, skip when all skipped, else fail.

    Args:
        endings: What became of the ranks, in the order in which they ended.

    Raises:
        RankThreadError: A rank failed or did not end; or some skipped and others did not.
        unittest.SkipTest, pytest.skip.Exception: All ranks skipped; the skip of the first.
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
    """The first that failed; else one that never ended, and of these one that its peers waited for; else a skip."""

    def among(outcome: Outcome) -> list[Ending]:
        return [ending for ending in endings if ending.outcome is outcome]

    # All that timed out did so at the same moment: the order in which they were stopped means nothing.
    timed_out = sorted(among(Outcome.TIMED_OUT), key=lambda ending: (ending.is_waiting, ending.rank))
    return next(iter([*among(Outcome.FAILED), *timed_out, *among(Outcome.SKIPPED)]), None)


def _error(leading: Ending, endings: Sequence[Ending]) -> RankThreadError:
    peers = sorted((ending for ending in endings if ending is not leading), key=lambda ending: ending.rank)
    lines = [_headline(leading, endings), *(f"  rank {peer.rank} {_peer_words(peer, leading)}" for peer in peers)]
    error = RankThreadError("\n".join(lines), leading.rank)
    for peer in peers:
        if peer.outcome is Outcome.FAILED and peer.error is not None and not _is_alike(peer, leading):
            error.add_note(f"rank {peer.rank}:\n{''.join(traceback.format_exception(peer.error)).rstrip()}")
    return error


def _headline(leading: Ending, endings: Sequence[Ending]) -> str:
    who = f"rank {leading.rank} of {len(endings)}"
    match leading.outcome:
        case Outcome.FAILED:
            return f"{who} failed first: {_first_line(leading.error)}"
        case Outcome.TIMED_OUT:
            return f"{who} timed out: {_place_words(leading)}"
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
            return f"aborted by rank {leading.rank}{skipped}: {_place_words(peer)}"
        case Outcome.TIMED_OUT:
            return f"timed out: {_place_words(peer)}"
        case Outcome.SKIPPED:
            return f"skipped: {_first_line(peer.error)}"
        case _:
            return str(peer.outcome)


def _place_words(ending: Ending) -> str:
    words = "it waited for its peers" if ending.is_waiting else "it was"
    words += f" in {ending.place}" if ending.place else ""
    return f"{words}; its thread cannot be broken off and is left" if ending.is_left else words


def _is_alike(peer: Ending, leading: Ending) -> bool:
    return _first_line(peer.error) == _first_line(leading.error)


def _first_line(error: BaseException | None) -> str:
    if isinstance(error, unittest.SkipTest | pytest.skip.Exception):
        return str(error)
    text = "" if error is None else "".join(traceback.format_exception_only(error)).strip()
    return next(iter(text.splitlines()), "")

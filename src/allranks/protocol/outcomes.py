"""The outcomes of a test and its phases on a rank, and the kinds of skips."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Self

from allranks.protocol.xml_text import two_ends


class Outcome(StrEnum):
    """The outcome of one test on one rank."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    XPASSED = "xpassed"
    ERRORED = "errored"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    ABORTED = "aborted"
    MISSING = "missing"

    @property
    def is_bad(self) -> bool:
        """True if a test with this outcome does not pass (a strict xpass is reported as failed)."""
        return self not in GOOD


GOOD = frozenset({Outcome.PASSED, Outcome.SKIPPED, Outcome.XFAILED, Outcome.XPASSED})


def disagree(outcomes: Collection[Outcome]) -> bool:
    """True if the ranks of one test disagree on whether it could run, or on whether it is expected to fail."""
    agreeing = {Outcome.SKIPPED: {Outcome.SKIPPED}, Outcome.XFAILED: {Outcome.XFAILED, Outcome.XPASSED}}
    return any(outcome in outcomes and not agreeing[outcome].issuperset(outcomes) for outcome in agreeing)


def may_disagree(nodeid: str, mixed_skip: Iterable[str]) -> bool:
    """True if the ranks of a test may disagree on a skip: one of these ``fnmatch`` patterns matches its node id."""
    return any(fnmatchcase(nodeid, pattern) for pattern in mixed_skip)


def numbers(ranks: Iterable[int]) -> str:
    """Rank numbers in ascending order, with ranges of three or more: ``0, 2-5``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(_run(run) for run in runs)


def compact_numbers(ranks: Iterable[int]) -> str:
    """Numbers in ascending order, for programs and narrow columns: ``0,2-5``."""
    return numbers(ranks).replace(" ", "")


def named_ranks(ranks: Collection[int]) -> str:
    """Ranks in ascending order: ``rank 3``, ``ranks 0, 2-5``."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {numbers(ranks)}"


def named(names: Sequence[str], most: int = 3) -> str:
    """The first names, and the number of others: ``a, b, c and 4 more``."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _run(run: Sequence[int]) -> str:
    return f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run))


class SkipKind(StrEnum):
    """Why a rank skipped.

    ``environment``: the environment lacks something (an exit code of torch's table, sandcastle);
    ``hardware``: the environment lacks GPUs, which is an error in a cell that has them;
    ``plain``: the author's own ``pytest.skip``.
    """

    PLAIN = "plain"
    ENVIRONMENT = "environment"
    HARDWARE = "hardware"


TEXT_LIMIT = 64 * 1024
"""Characters of a traceback or of one captured stream in a record; the rest is dropped."""

MESSAGE_LIMIT = 1000
"""Characters of a message."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One phase of one test on one rank."""

    when: str  # ``setup``, ``call`` or ``teardown``
    outcome: Outcome
    duration: float
    message: str = ""  # one line; empty for a phase that passed
    text: str = ""  # the traceback or the reason
    stdout: str = ""
    stderr: str = ""
    skip_kind: SkipKind | None = None
    skip_code: int | None = None  # torch's exit code, for a skip that has one
    gpus_needed: int | None = None  # the number of GPUs that a hardware skip requires, since torch's codes end at 8
    raised: tuple[str, ...] = ()  # in a launched rank: the names of its exception's class and base classes

    @classmethod
    def of_error(cls, when: str, message: str, text: str = "", outcome: Outcome = Outcome.ERRORED) -> Self:
        """A phase that pytest itself does not report; long texts are cut."""
        message, text = shorten(message, MESSAGE_LIMIT), shorten(text)
        return cls(when=when, outcome=outcome, duration=0.0, message=message, text=text)

    @property
    def is_plain(self) -> bool:
        """True if it passed, with no message and no output."""
        return self.outcome is Outcome.PASSED and not (self.message or self.text or self.stdout or self.stderr)


def shorten(text: str, limit: int = TEXT_LIMIT) -> str:
    """`text`, with its middle cut out, between words, if it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    head, tail = two_ends(text, limit)
    head, tail = head.rstrip(), tail.lstrip()
    gap = "\n" if "\n" in text else " "  # a message of one line stays one
    return f"{head}{gap}… {len(text) - len(head) - len(tail)} characters cut …{gap}{tail}"


def following(phase: Phase) -> str:
    """The name of the phase that follows this one; empty if it is the last."""
    if phase.when == "teardown":
        return ""
    return "tear-down" if phase.when == "call" or phase.outcome is not Outcome.PASSED else "call"


_IN_TEAR_DOWN = "the test passed, but its tear-down was skipped: "


def overall(phases: Sequence[Phase]) -> Phase:
    """The phase that decides a test: the first failure, else the first phase that did not simply pass, else the call.

    As in pytest's XML, a test that passed counts as skipped if its tear-down skips, because the checks of the tear-down
    did not run. The reason says so.
    """
    bad = next((phase for phase in phases if phase.outcome.is_bad), None)
    if bad is not None:
        return bad
    notable = next((phase for phase in phases if phase.outcome is not Outcome.PASSED), None)
    if notable and (notable.when, notable.outcome) == ("teardown", Outcome.SKIPPED) and len(phases) > 2:
        return replace(notable, message=_IN_TEAR_DOWN + notable.message, text=_IN_TEAR_DOWN + notable.text)
    return notable or next((phase for phase in phases if phase.when == "call"), phases[-1])

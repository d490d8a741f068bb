"""The records of one repetition at a time: who takes them, and whether it went wrong."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from allranks.agent.channel import RunTest
from allranks.agent.record_stream import Journal
from allranks.protocol.outcomes import Outcome, disagree
from allranks.protocol.records import (
    FailureCourse,
    GangReady,
    GangStarted,
    LeftBehind,
    Notice,
    Passed,
    RankEnded,
    Record,
    TestStarted,
)

End = Passed | RankEnded | FailureCourse


class Plan(Protocol):
    """Decides which repetitions a test loop runs, and takes what they come to."""

    def steps(self, indices: Sequence[int]) -> Iterator[tuple[int, int]]:
        """The repetitions in one gang: each test, and the one after it."""

    def begin(self, index: int) -> int:
        """The number of the repetition of a test that begins now."""

    def drawn(self, command: RunTest, number: int) -> RunTest:
        """The command of a test for its repetition of this number."""

    def disturbance(self, command: RunTest, ranks: int, *, is_joining: bool) -> str:
        """What plug-ins do to ranks from outside while they join their gang, or run a test; empty for nothing."""

    def take(self, started: TestStarted, ends: Sequence[End]) -> None:
        """Take the records of a repetition that has ended."""

    def note(self, record: GangStarted | GangReady | LeftBehind | Notice) -> None:
        """Take a record that every repetition may bring."""


class RepetitionJournal:
    """The journal of a test loop that repeats tests: it holds the records of a repetition until the next one begins.

    Args:
        journal: Takes records that are about none.
        repetitions: Takes the others.
    """

    def __init__(self, journal: Journal, repetitions: Plan) -> None:
        self._journal = journal
        self._repetitions = repetitions
        self._started: TestStarted | None = None
        self._ends: list[End] = []

    def write(self, record: Record) -> None:
        """See :class:`allranks.agent.record_stream.Journal`."""
        match record:
            case TestStarted():
                self.conclude()
                self._started = record
            case Passed() | RankEnded() | FailureCourse():
                self._ends.append(record)
            case GangStarted() | GangReady() | LeftBehind() | Notice():
                self._repetitions.note(record)
            case _:
                self._journal.write(record)

    def drop(self) -> None:
        """Forget the repetition under way: the job is ended from outside before its outcome."""
        if not self._ends:
            self._started = None

    def conclude(self) -> None:
        """Have the repetition counted whose gang has ended, or goes on with another."""
        if self._started is not None:
            self._repetitions.take(self._started, self._ends)
        self._started, self._ends = None, []


def was_bad(started: TestStarted, ends: Sequence[End]) -> bool | None:
    """Whether a repetition went wrong; None if it has no outcome, or was ended from outside."""
    bad = [each for each in ends if isinstance(each, RankEnded) and each.outcome.is_bad]
    if not (outcomes := outcomes_of(ends)):
        return None
    if bad and all(each.outcome is Outcome.ABORTED and each.caused_by is None for each in bad):
        return None
    return bool(bad) or (disagree(outcomes) and not started.may_disagree)


def outcomes_of(ends: Sequence[End]) -> set[Outcome]:
    """The outcomes of a repetition's ranks."""
    return {each.outcome for each in ends if not isinstance(each, FailureCourse)}


def seconds_of(ends: Sequence[End]) -> float:
    """The duration of a repetition in the rank that took longest; 0 if no rank has told."""
    told = [each for each in ends if not isinstance(each, FailureCourse)]
    return max((each.seconds if isinstance(each, RankEnded) else max(each.seconds) for each in told), default=0.0)

"""How far the jobs of a run are, as their records tell."""

import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final, Literal

from allranks.protocol.outcomes import Outcome, disagree
from allranks.protocol.records import Collected, Passed, RankEnded, Record, Repeated, TestStarted
from allranks.protocol.repetitions import percentage

State = Literal["waiting", "preparing", "running", "done"]
Word = Literal["bad", "passed", "skipped"]

STATES: Final[tuple[State, ...]] = ("running", "preparing", "waiting", "done")
WORDS: Final[tuple[Word, ...]] = ("bad", "passed", "skipped")


def word_of(outcomes: Collection[Outcome], *, may_disagree: bool = False) -> Word:
    """The word for a test whose ranks had these outcomes."""
    if any(outcome.is_bad for outcome in outcomes) or (disagree(outcomes) and not may_disagree):
        return "bad"
    return "passed" if Outcome.PASSED in outcomes else "skipped"


def words(counts: Counter[Word]) -> str:
    """Counts in words: ``1 bad, 2 passed``."""
    return ", ".join(f"{counts[word]} {word}" for word in WORDS if counts[word])


@dataclass(eq=False)
class RunningTest:
    """A test that has started and has no outcome yet; an agent reports the outcomes of all its ranks at once."""

    nodeid: str
    began: float  # on the monotonic clock
    slow_lines: int = 0  # how often a log has said that it is slow

    @property
    def seconds(self) -> float:
        """How long it has been running."""
        return time.monotonic() - self.began


@dataclass(eq=False)
class Tests:
    """The tests of an attempt at a job so far, by the outcomes of their ranks."""

    __test__ = False  # not a test class, despite its name

    collected: int | None = None  # None until some are reported
    counts: Counter[Word] = field(default_factory=lambda: Counter(dict.fromkeys(WORDS, 0)))
    first_bad: str = ""
    running: dict[str, RunningTest] = field(default_factory=dict)
    _outcomes: dict[str, frozenset[Outcome]] = field(default_factory=dict)
    _may_disagree: set[str] = field(default_factory=set)

    def note(self, record: Record) -> None:
        """Take in the next record of the job."""
        match record:
            case Collected():
                self.collected = (self.collected or 0) + len(record.tests)
            case TestStarted():
                self._start(record)
            case Passed() | RankEnded():
                self._end(record.nodeid, record.outcome)
            case Repeated():  # the rate of its repetitions shows how it fares
                self.running.pop(record.nodeid, None)

    def _start(self, test: TestStarted) -> None:
        self.running[test.nodeid] = RunningTest(test.nodeid, time.monotonic())
        if test.may_disagree:
            self._may_disagree.add(test.nodeid)
        if test.number > 1:
            if before := self._outcomes.pop(test.nodeid, None):
                self.counts[self._word_of(test.nodeid, before)] -= 1
            if self.first_bad == test.nodeid:
                self.first_bad = ""

    def _end(self, nodeid: str, outcome: Outcome) -> None:
        self.running.pop(nodeid, None)
        if before := self._outcomes.get(nodeid):
            self.counts[self._word_of(nodeid, before)] -= 1
        self._outcomes[nodeid] = outcomes = (before or frozenset()) | {outcome}
        word = self._word_of(nodeid, outcomes)
        self.counts[word] += 1
        if word == "bad":
            self.first_bad = self.first_bad or nodeid

    def _word_of(self, nodeid: str, outcomes: Collection[Outcome]) -> Word:
        return word_of(outcomes, may_disagree=nodeid in self._may_disagree)

    def forget_names(self) -> None:
        """Keep the counts alone: hundreds of jobs may have thousands of tests each."""
        self.running, self._outcomes, self._may_disagree = {}, {}, set()


def rate_so_far(record: Repeated) -> str:
    """How all repetitions of a job fare."""
    return f"{record.runs:,} runs, {record.bad:,} bad ({percentage(record.bad / max(1, record.runs))} %)"


@dataclass(eq=False, kw_only=True)
class JobProgress:
    """How far the newest attempt at a job is."""

    job_id: str
    state: State = "waiting"
    place: str = ""  # its place in the queue of its engine; empty for none
    rate: str = ""  # how the repetitions of its tests fare, in words; empty for none
    gpus: tuple[int, ...] = ()  # the indexes of its GPUs among the host's
    tests: Tests = field(default_factory=Tests)
    trouble: str = ""  # the error of the job as a whole
    slow_after: float = inf  # seconds after which a test is slow
    began: float | None = None  # when it began to run, on the monotonic clock
    took: float | None = None  # seconds, once it is done
    rate_told: float = 0.0  # seconds from its start to the last line about its repetitions

    @property
    def seconds(self) -> float | None:
        """How long it has been running; its duration once it is done."""
        if self.took is not None or self.began is None:
            return self.took
        return time.monotonic() - self.began

    @property
    def is_bad(self) -> bool:
        """Whether a person should look at it."""
        return bool(self.tests.counts["bad"] or self.trouble)

    @property
    def longest(self) -> RunningTest | None:
        """The test that has been running for longest; None if none runs."""
        # A copy, made at once: the thread of the job changes it.
        return min(tuple(self.tests.running.values()), key=lambda test: test.began, default=None)

    @property
    def has_slow_test(self) -> bool:
        """Whether a test is slow."""
        return self.longest is not None and self.longest.seconds >= self.slow_after


def summary(jobs: Sequence[JobProgress], seconds: float) -> str:
    """How far the jobs of a run are after so many seconds, on one line."""
    states = Counter(job.state for job in jobs)
    tests: Counter[Word] = Counter({word: sum(job.tests.counts[word] for job in jobs) for word in WORDS})
    told = ", ".join(f"{states[state]} {state}" for state in STATES if states[state]) or "none"
    bad = sum(job.is_bad for job in jobs)
    collected = [job.tests.collected for job in jobs if job.tests.collected is not None]
    of_all = f" of {sum(collected)}" if len(collected) == len(jobs) else ""
    told_tests = f"{words(tests)}{of_all}" if tests.total() else "none yet"
    return f"jobs: {told}{f' ({bad} bad)' if bad else ''}; tests: {told_tests}; {clock(seconds)}"


def clock(seconds: float | None) -> str:
    """A duration as ``1:02:03`` or ``2:03``; nothing for None."""
    if seconds is None:
        return ""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"

"""The progress of a run's jobs, computed from their records."""

import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from allranks.errors import counted
from allranks.protocol.outcomes import Outcome, disagree, named_ranks
from allranks.protocol.records import Collected, Location, Passed, RankEnded, Record, Repeated, TestSlow, TestStarted
from allranks.protocol.repetitions import percentage

State = Literal["waiting", "preparing", "running", "done"]
TestStatus = Literal["failed", "passed", "skipped"]

STATES: Final[tuple[State, ...]] = ("running", "preparing", "waiting", "done")
STATUSES: Final[tuple[TestStatus, ...]] = ("failed", "passed", "skipped")


def status_of(outcomes: Collection[Outcome], *, may_disagree: bool = False) -> TestStatus:
    """The status of a test whose ranks had these outcomes."""
    if any(outcome.is_bad for outcome in outcomes) or (disagree(outcomes) and not may_disagree):
        return "failed"
    return "passed" if Outcome.PASSED in outcomes else "skipped"


def format_counts(counts: Counter[TestStatus]) -> str:
    """Format counts as ``1 failed, 2 passed``."""
    return ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])


@dataclass(eq=False)
class RunningTest:
    """A test that has started and has no outcome yet; an agent reports the outcomes of all its ranks at once."""

    nodeid: str
    began: float  # on the monotonic clock
    slow: TestSlow | None = None  # the newest record that it is slow

    @property
    def seconds(self) -> float:
        """How long it has been running."""
        return time.monotonic() - self.began


@dataclass(eq=False)
class Tests:
    """The tests of an attempt at a job so far."""

    __test__ = False  # not a test class, despite its name

    collected: int | None = None  # the number of collected tests; None until the agent reports some
    counts: Counter[TestStatus] = field(default_factory=lambda: Counter(dict.fromkeys(STATUSES, 0)))
    first_failed: str = ""
    running: dict[str, RunningTest] = field(default_factory=dict)
    _outcomes: dict[str, frozenset[Outcome]] = field(default_factory=dict)
    _may_disagree: set[str] = field(default_factory=set)

    def update(self, record: Record) -> None:
        """Update the counts with the next record of the job."""
        match record:
            case Collected():
                self.collected = (self.collected or 0) + len(record.tests)
            case TestStarted():
                self._start(record)
            case Passed() | RankEnded():
                self._end(record.nodeid, record.outcome)
            case TestSlow() if record.nodeid in self.running:
                self.running[record.nodeid].slow = record
            case Repeated():  # not counted: its failure rate is shown instead
                self.running.pop(record.nodeid, None)

    def _start(self, test: TestStarted) -> None:
        self.running[test.nodeid] = RunningTest(test.nodeid, time.monotonic())
        if test.may_disagree:
            self._may_disagree.add(test.nodeid)
        if test.number > 1:
            if before := self._outcomes.pop(test.nodeid, None):
                self.counts[self._status_of(test.nodeid, before)] -= 1
            if self.first_failed == test.nodeid:
                self.first_failed = ""

    def _end(self, nodeid: str, outcome: Outcome) -> None:
        self.running.pop(nodeid, None)
        if before := self._outcomes.get(nodeid):
            self.counts[self._status_of(nodeid, before)] -= 1
        self._outcomes[nodeid] = outcomes = (before or frozenset()) | {outcome}
        status = self._status_of(nodeid, outcomes)
        self.counts[status] += 1
        if status == "failed":
            self.first_failed = self.first_failed or nodeid

    def _status_of(self, nodeid: str, outcomes: Collection[Outcome]) -> TestStatus:
        return status_of(outcomes, may_disagree=nodeid in self._may_disagree)

    def forget_names(self) -> None:
        """Keep only the counts, to save memory: hundreds of jobs may have thousands of tests each."""
        self.running, self._outcomes, self._may_disagree = {}, {}, set()


def format_rate(record: Repeated) -> str:
    """The failure rate of a job's repeated tests so far."""
    return f"{record.bad:,} of {record.runs:,} runs failed ({percentage(record.bad / max(1, record.runs))} %)"


@dataclass(eq=False, kw_only=True)
class JobProgress:
    """The progress of the newest attempt at a job."""

    job_id: str
    state: State = "waiting"
    queue_status: str = ""  # its status in the engine's queue; empty if it has left the queue, or there is none
    rate: str = ""  # the failure rate of its repeated tests; empty for none
    gpus: tuple[int, ...] = ()  # the indexes of its GPUs among the host's
    tests: Tests = field(default_factory=Tests)
    error: str = ""  # the error of the job as a whole
    began: float | None = None  # when it began to run, on the monotonic clock
    took: float | None = None  # seconds, once it is done
    rate_printed: float = 0.0  # when the log last got its failure rate, in seconds after its start

    @property
    def seconds(self) -> float | None:
        """How long it has been running; its duration once it is done."""
        if self.took is not None or self.began is None:
            return self.took
        return time.monotonic() - self.began

    @property
    def has_failed(self) -> bool:
        """Whether the job or one of its tests has failed."""
        return bool(self.tests.counts["failed"] or self.error)

    @property
    def longest(self) -> RunningTest | None:
        """The test that has been running for longest."""
        # A copy, since the thread of the job changes it.
        return min(tuple(self.tests.running.values()), key=lambda test: test.began, default=None)

    @property
    def has_slow_test(self) -> bool:
        """Whether a running test is slow."""
        return self.longest is not None and self.longest.slow is not None


_MOST_LOCATIONS: Final = 4
"""Locations in one message."""


def format_locations(slow: TestSlow) -> str:
    """Where the ranks of a slow test are: ``rank 0 has ended; rank 1 is waiting at test_a.py:7 in test_it``."""
    ended = [f"{named_ranks(slow.ended)} {'has' if len(slow.ended) == 1 else 'have'} ended"] if slow.ended else []
    more = len(slow.locations) - _MOST_LOCATIONS
    others = [counted(more, "more place")] if more > 0 else []
    return "; ".join([*ended, *map(_format_location, slow.locations[:_MOST_LOCATIONS]), *others])


def _format_location(location: Location) -> str:
    are = "is" if len(location.ranks) == 1 else "are"
    doing = " waiting" if location.is_waiting else ""
    where = f" at {location.frame}" if location.frame else ""
    return f"{named_ranks(location.ranks)} {are}{doing or (' running' if not where else '')}{where}"


def summary(jobs: Sequence[JobProgress], seconds: float) -> str:
    """The progress of a run after so many seconds, on one line."""
    states = Counter(job.state for job in jobs)
    counts: Counter[TestStatus] = Counter(
        {status: sum(job.tests.counts[status] for job in jobs) for status in STATUSES}
    )
    job_text = ", ".join(f"{states[state]} {state}" for state in STATES if states[state]) or "none"
    failed = sum(job.has_failed for job in jobs)
    collected = [job.tests.collected for job in jobs if job.tests.collected is not None]
    of_all = f" of {sum(collected)}" if len(collected) == len(jobs) else ""
    test_text = f"{format_counts(counts)}{of_all}" if counts.total() else "none yet"
    failed_text = f"; {failed} failed" if failed else ""
    return f"jobs: {job_text}{failed_text}; tests: {test_text}; {format_duration(seconds)}"


def format_duration(seconds: float | None) -> str:
    """A duration as ``1:02:03`` or ``2:03``; empty for None."""
    if seconds is None:
        return ""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"

"""How far every job of a run is: counters that records move, and a picture of them to be shown."""

import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from allranks.protocol.outcomes import Outcome, disagree
from allranks.protocol.records import Collected, Passed, RankEnded, Record, Repeated, TestStarted
from allranks.protocol.repetitions import percentage

State = Literal["waiting", "preparing", "running", "done"]
Word = Literal["skipped", "passed", "bad"]

STATES: Final[tuple[State, ...]] = ("running", "preparing", "waiting", "done")


def word_of(outcomes: Collection[Outcome], *, may_disagree: bool = False) -> Word:
    """The word for a test whose ranks had these outcomes."""
    if any(outcome.is_bad for outcome in outcomes) or (disagree(outcomes) and not may_disagree):
        return "bad"
    return "passed" if Outcome.PASSED in outcomes else "skipped"


@dataclass(eq=False)
class Tests:
    """The tests of a job so far, by the outcomes of their ranks."""

    __test__ = False  # not a test class, despite its name

    counts: Counter[Word] = field(default_factory=Counter)
    first_bad: str = ""
    _outcomes: dict[str, frozenset[Outcome]] = field(default_factory=dict)
    _may_disagree: set[str] = field(default_factory=set)

    def note(self, record: TestStarted | Passed | RankEnded) -> None:
        """Take in the start of a test, or outcomes of its ranks."""
        nodeid = record.nodeid
        if isinstance(record, TestStarted):
            if record.may_disagree:
                self._may_disagree.add(nodeid)
            if record.number > 1:
                self._begin_again(nodeid)
            return
        may_disagree = nodeid in self._may_disagree
        if before := self._outcomes.get(nodeid):
            self.counts[word_of(before, may_disagree=may_disagree)] -= 1
        outcomes = (before or frozenset()) | {record.outcome}
        self._outcomes[nodeid] = outcomes
        word = word_of(outcomes, may_disagree=may_disagree)
        self.counts[word] += 1
        if word == "bad":
            self.first_bad = self.first_bad or nodeid

    def _begin_again(self, nodeid: str) -> None:
        if before := self._outcomes.pop(nodeid, None):
            self.counts[word_of(before, may_disagree=nodeid in self._may_disagree)] -= 1
        if self.first_bad == nodeid:
            self.first_bad = ""

    def forget_names(self) -> None:
        """Keep the counts alone: hundreds of jobs may have thousands of tests each."""
        self._outcomes, self._may_disagree = {}, set()

    @property
    def words(self) -> str:
        """The counts in words; empty if there are none."""
        return words(self.counts)


@dataclass(eq=False)
class Pace:
    """When the next line about the repetitions of a job is due."""

    _began: float = field(default_factory=time.monotonic)
    _told_at: float = 0.0

    def is_due(self) -> bool:
        """Whether a log should have another line: after ten seconds, and then after a quarter of the time so far."""
        elapsed = time.monotonic() - self._began
        if elapsed - self._told_at < max(_FIRST_LINE, elapsed / 5):
            return False
        self._told_at = elapsed
        return True


_FIRST_LINE: Final = 10.0


def rate_so_far(record: Repeated) -> str:
    """How all repetitions of a job fare."""
    return f"{record.runs:,} runs, {record.bad:,} bad ({percentage(record.bad / max(1, record.runs))} %)"


def words(counts: Counter[Word]) -> str:
    """Counts in words: ``1 bad, 2 passed``."""
    return ", ".join(f"{counts[word]} {word}" for word in ("bad", "passed", "skipped") if counts[word])


@dataclass(frozen=True, kw_only=True)
class Row:
    """The progress of one job."""

    job_id: str
    state: str = "waiting"  # its state, or its place in the queue of its engine
    collected: int | None = None  # tests that it has to run; None until some are reported
    passed: int = 0
    skipped: int = 0
    bad: int = 0
    first_bad: str = ""
    trouble: str = ""  # the error of the job as a whole
    gpus: tuple[int, ...] = ()  # the indexes of its GPUs among the host's
    seconds: int | None = None  # since it began to run; for a job that is done, its duration

    @property
    def done(self) -> int:
        """Tests with an outcome of at least one rank."""
        return self.passed + self.skipped + self.bad

    @property
    def is_bad(self) -> bool:
        """Whether a person should look at it."""
        return bool(self.bad or self.trouble)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A run at one moment."""

    rows: tuple[Row, ...]  # some of its jobs, or all, in the order of the plan
    states: Counter[State]  # how many of all jobs are in each state
    tests: Counter[Word]  # the number of tests of all jobs for each word
    bad_jobs: int  # how many of all jobs a person should look at
    first_failure: str
    seconds: int  # since the run began


@dataclass(eq=False)
class _Job:
    state: State = "waiting"
    place: str = ""
    gpus: tuple[int, ...] = ()
    collected: int | None = None
    tests: Tests = field(default_factory=Tests)
    trouble: str = ""
    began: float | None = None
    took: float | None = None

    def row(self, job_id: str, now: float) -> Row:
        counts = self.tests.counts
        seconds = self.took if self.took is not None else None if self.began is None else now - self.began
        return Row(
            job_id=job_id,
            state=self.place if self.state == "running" and self.place else self.state,
            collected=self.collected,
            passed=counts["passed"],
            skipped=counts["skipped"],
            bad=counts["bad"],
            first_bad=self.tests.first_bad,
            trouble=self.trouble,
            gpus=self.gpus,
            seconds=None if seconds is None else int(seconds),
        )

    @property
    def is_bad(self) -> bool:
        return bool(self.tests.counts["bad"] or self.trouble)

    @property
    def urgency(self) -> int:
        """Which jobs are shown when not all fit: smaller numbers first."""
        if self.state == "running":
            return 0
        if self.is_bad:
            return 1
        return {"preparing": 2, "waiting": 3, "done": 4}[self.state]


class Board:
    """The state of all jobs of a run; any thread may update or read it."""

    def __init__(self, job_ids: Iterable[str]) -> None:
        self._jobs = {job_id: _Job() for job_id in job_ids}
        self._first_failure = ""
        self._began = time.monotonic()
        # Held only while counting: printing threads take it while they hold a lock of their own.
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """How many jobs there are."""
        return len(self._jobs)

    def move(self, job_id: str, state: State, gpus: Sequence[int] = ()) -> None:
        """Move a job to another state; one that waits or is prepared starts over, as a new attempt."""
        with self._lock:
            if state in {"waiting", "preparing"}:
                self._jobs[job_id] = _Job(state=state, gpus=tuple(gpus))
                return
            job = self._jobs[job_id]
            job.state, job.began = state, time.monotonic()

    def place(self, job_id: str, told: str) -> None:
        """Note where a running job is; its time begins anew, since it was in a queue until now."""
        with self._lock:
            job = self._jobs[job_id]
            job.place, job.began = told, time.monotonic()

    def show(self, job_id: str, told: str) -> None:
        """Show words in the place of a running job's state."""
        with self._lock:
            self._jobs[job_id].place = told

    def note(self, job_id: str, record: Record) -> Word | None:
        """Count a record of a job; return the word for its outcome, if it has one."""
        match record:
            case TestStarted() | Passed() | RankEnded():
                with self._lock:
                    self._jobs[job_id].tests.note(record)
                return None if isinstance(record, TestStarted) else word_of([record.outcome])
            case Collected():
                with self._lock:
                    job = self._jobs[job_id]
                    job.collected = (job.collected or 0) + len(record.tests)
        return None

    def fail(self, what: str) -> None:
        """Note a failure, in words; only the first is kept."""
        with self._lock:
            self._first_failure = self._first_failure or what

    def end(self, job_id: str, seconds: float, trouble: str) -> None:
        """Note that a job has ended."""
        with self._lock:
            job = self._jobs[job_id]
            job.state, job.took, job.trouble, job.gpus = "done", seconds, trouble, ()
            job.tests.forget_names()

    def picture(self, room: int) -> Picture:
        """The current state, with at most `room` jobs: running ones first, then bad ones."""
        now = time.monotonic()
        with self._lock:
            chosen = sorted(self._jobs, key=lambda job_id: self._jobs[job_id].urgency)[: max(room, 0)]
            shown = frozenset(chosen)
            rows = tuple(job.row(job_id, now) for job_id, job in self._jobs.items() if job_id in shown)
            tests: Counter[Word] = Counter()
            for job in self._jobs.values():
                tests.update(job.tests.counts)
            return Picture(
                rows=rows,
                states=Counter(job.state for job in self._jobs.values()),
                tests=tests,
                bad_jobs=sum(job.is_bad for job in self._jobs.values()),
                first_failure=self._first_failure,
                seconds=int(now - self._began),
            )

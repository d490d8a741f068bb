"""Schedules the repetitions of a job's tests, and counts their results.

Repetitions that pass are only counted and timed. The records of failed repetitions are kept under separate names, up to
a few dozen of each kind of failure. So neither memory nor report grow with the number of repetitions.
"""

import itertools
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from allranks.agent.channel import RunTest
from allranks.agent.program import Program
from allranks.agent.record_stream import Journal
from allranks.agent.supervisor.test_loop import RepetitionRecord, split_by_gang
from allranks.plugins.stress.agent.settings import Stress, seed_of_repetition
from allranks.plugins.stress.agent.skew import format_outside
from allranks.protocol.outcomes import Outcome, disagree
from allranks.protocol.records import (
    FailureCourse,
    GangReady,
    GangStarted,
    LeftBehind,
    Notice,
    NotRun,
    PhaseEnd,
    RankEnded,
    Record,
    Repeated,
    TestStarted,
)
from allranks.protocol.repetitions import OFF, RepetitionTally, full_rate, name_of_repetition, options_of

TURN = 1.0
"""Seconds that a gang repeats its tests while other tests wait for a gang."""

MOST_PER_GANG = 1_000
"""The most repetitions of a gang. Replacing a gang releases the memory and the files that its ranks have leaked."""

MOST_PER_KIND = 24
"""The most failed repetitions of a test that are kept if their messages differ only in numbers."""

MOST_KEPT = 300
"""The most failed repetitions of a job that are kept."""

MOST_NOTES = 50
"""The most records that are kept of each type about gangs, processes left behind and the like."""

_INTERVAL, _SHARE = 1.0, 0.01
"""Tallies are reported at most once per interval, and per this share of the elapsed time: a thousand in ten hours."""

_STEP = math.log(1.05)
"""Durations are counted in steps of 5 %, so that a few hundred counters are enough for any number of repetitions."""

_TIMEOUT = re.compile(r"timed?[ -]?out|failed to pass monitoredbarrier", re.IGNORECASE)


def was_bad(started: TestStarted, ends: Sequence[RepetitionRecord]) -> bool | None:
    """Whether a repetition failed; None if it has no outcome, or was ended from outside."""
    bad = [end for end in ends if isinstance(end, RankEnded) and end.outcome.is_bad]
    if not (outcomes := outcomes_of(ends)):
        return None
    if bad and all(end.outcome is Outcome.ABORTED and end.caused_by is None for end in bad):
        return None
    return bool(bad) or (disagree(outcomes) and not started.may_disagree)


def outcomes_of(ends: Sequence[RepetitionRecord]) -> set[Outcome]:
    """The outcomes of a repetition's ranks."""
    return {end.outcome for end in ends if not isinstance(end, FailureCourse)}


def seconds_of(ends: Sequence[RepetitionRecord]) -> float:
    """The duration of a repetition in the slowest rank; 0 if no rank has reported it."""
    timed = [end for end in ends if not isinstance(end, FailureCourse)]
    return max((end.seconds if isinstance(end, RankEnded) else max(end.seconds) for end in timed), default=0.0)


@dataclass(kw_only=True)
class _Test:
    """The repetitions of one test so far."""

    reserved: int = 0  # the number of repetitions that have started, or are about to
    begun: int = 0  # the number of repetitions that have started
    is_skipped: bool = False  # and will be skipped again, so it is not repeated
    is_lost: bool = False  # a repetition has no outcome
    last: Sequence[RepetitionRecord] = ()  # the records of the last repetition that did not fail
    first_bad: Sequence[RepetitionRecord] = ()  # the records of the first failed repetition
    tally: RepetitionTally = field(default_factory=RepetitionTally)
    durations: Counter[int] = field(default_factory=Counter)  # the number of repetitions by their steps of 5 %
    # For each kind of failure, the number of failed repetitions and the start of the first.
    failure_kinds: dict[tuple[Outcome, str], tuple[int, TestStarted]] = field(default_factory=dict)

    @property
    def tally_with_median(self) -> RepetitionTally:
        """The tally with the median duration, which may not exceed the slowest due to rounding."""
        return replace(self.tally, median=min(round(_median(self.durations), 6), self.tally.slowest))


class Repetitions:
    """Schedules and counts the repetitions of a job's tests, for several threads.

    Args:
        stress: How the tests are repeated.
        program: The tests.
        journal: Receives records.
        clock: The current time in seconds.
    """

    def __init__(
        self, stress: Stress, program: Program, journal: Journal, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stress = stress
        self._program = program
        self._journal = journal
        self._clock = clock
        self._indices_by_gang = list(split_by_gang(program.options, range(len(program.tests))))
        how = RepetitionTally(command="stress", how=" ".join(options_of(stress.skew)))
        self._tests = {nodeid: _Test(tally=how) for nodeid in program.tests}
        self._notes: Counter[type[Record]] = Counter()
        self._has_stopped = False
        self._runs = self._bad = 0
        self._began: float | None = None
        self._reported_at = 0.0
        self._lock = threading.Lock()

    def next_turn(self) -> Sequence[int] | None:
        """The tests for the next gang, the one with the fewest repetitions first; None if there are no more."""
        with self._lock:
            turns = [[index for index in indices if self._may_begin(index)] for indices in self._indices_by_gang]
            found = min(filter(None, turns), key=lambda turn: min(map(self._reserved, turn)), default=None)
            if found is None:
                return None
            start = found.index(min(found, key=self._reserved))
            self._test(found[start]).reserved += 1
            return [*found[start:], *found[:start]]

    def steps(self, indices: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield the index of the next test and of the one after it; :meth:`next_turn` has reserved the first."""
        seconds = TURN if len(self._indices_by_gang) > 1 else math.inf
        ends, least = self._clock() + seconds, len(indices)
        shares_ranks = self._program.options[indices[0]].shares_ranks
        pairs = zip(indices, [*indices[1:], indices[0]], strict=True)
        for count, (index, following) in enumerate(itertools.cycle(pairs)):
            if count:
                is_full = not shares_ranks or count >= max(least, MOST_PER_GANG)
                if is_full or (count >= least and self._clock() >= ends) or not self._reserve(index):
                    return
            yield index, following

    def begin(self, index: int) -> int:
        with self._lock:
            test = self._test(index)
            self._began = self._clock() if self._began is None else self._began
            if not test.begun:
                self._journal.write(TestStarted(nodeid=self._program.tests[index]))
                self._report_tally(self._program.tests[index])  # before a repetition is reported under its own name
            test.begun += 1
            return test.begun

    def drawn(self, command: RunTest, number: int) -> RunTest:
        replay = self._stress.replay
        seed = seed_of_repetition(command.seed, number) if replay is None else replay
        return replace(command, seed=seed, instructions=self._stress.skew)

    def disturbance(self, command: RunTest, ranks: int, *, is_joining: bool) -> str:
        return format_outside(command.instructions, command.seed, ranks, is_joining=is_joining)

    def take(self, started: TestStarted, ends: Sequence[RepetitionRecord]) -> None:
        """Count a repetition, and write its records if it failed."""
        with self._lock:
            test, now = self._tests[started.nodeid], self._elapsed
            outcomes, bad = outcomes_of(ends), was_bad(started, ends)
            if not outcomes:
                test.is_lost = True
            elif bad is None:
                test.last = test.last or ends  # ended from outside: ignored, unless there is no other repetition
            else:
                self._count(test, started, ends)
            if bad:
                self._count_bad(test, started, ends, now)
            elif bad is not None:
                test.last, test.is_skipped = ends, outcomes == {Outcome.SKIPPED}
            if now - self._reported_at >= max(_INTERVAL, _SHARE * now):
                self._reported_at = now
                self._report_tally(started.nodeid)

    def note(self, record: GangStarted | GangReady | LeftBehind | Notice) -> None:
        """Write a record that every repetition may cause, unless there are enough of its type."""
        with self._lock:
            if isinstance(record, LeftBehind):
                test = self._tests[record.nodeid]
                test.tally = replace(test.tally, left=test.tally.left + 1)
            self._notes[type(record)] += 1
            if self._notes[type(record)] <= MOST_NOTES:
                self._journal.write(record)

    def typical_failures(self) -> Sequence[TestStarted]:
        """For each failed test, the first repetition with the most frequent kind of failure."""
        kinds_by_test = [test.failure_kinds.values() for test in self._tests.values() if test.failure_kinds]
        return [max(kinds, key=lambda kind: kind[0])[1] for kinds in kinds_by_test]

    def explain(self, failed: TestStarted, why: str, skew: str, shown: Sequence[RepetitionRecord]) -> None:
        """Report the cause of a test's most frequent failure.

        Args:
            failed: The repetition.
            why: The cause, as text.
            skew: The delays that the failure needs.
            shown: The ends of a repetition with only these delays, which is reported under a separate name.
        """
        with self._lock:
            test = self._tests[failed.nodeid]
            test.tally = replace(test.tally, shrunk=why)
            name = name_of_repetition(failed.nodeid, failed.number, failed.seed, skew)
            for record in (replace(failed, number=1), *shown) if shown else ():
                named = replace(record, nodeid=name)
                if isinstance(named, RankEnded) and named.outcome.is_bad and not named.consequence:
                    named = replace(named, message=f"{why}: {named.message}")
                self._journal.write(named)

    def ran(self) -> Sequence[str]:
        """The tests that ran and were not skipped."""
        return [nodeid for nodeid, test in self._tests.items() if test.tally.runs and not test.is_skipped]

    def runs_of(self, nodeid: str) -> int:
        """The number of repetitions of a test that have an outcome."""
        return self._tests[nodeid].tally.runs

    def set_baseline(self, nodeid: str, runs: int, bad: int, command: str) -> None:
        """Store the results of a test under torch's own runner; if it has none, `command` is the reason."""
        test = self._tests[nodeid]
        test.tally = replace(test.tally, beside_runs=runs, beside_bad=bad, beside=command)

    def finish(self) -> None:
        """Write the overall outcome of each test."""
        with self._lock:
            for nodeid, test in self._tests.items():
                if test.begun:
                    self._report_tally(nodeid)
                for record in () if test.is_lost else _summary_records(nodeid, test):
                    self._journal.write(record)
            if self._is_over and (left := tuple(nodeid for nodeid, test in self._tests.items() if not test.begun)):
                why = "-x or --maxfail" if self._has_stopped else "--duration"
                self._journal.write(NotRun(tests=left, reason=why))

    def _report_tally(self, nodeid: str) -> None:
        tally = self._tests[nodeid].tally_with_median
        self._journal.write(Repeated(nodeid=nodeid, tally=tally, runs=self._runs, bad=self._bad))

    @property
    def _is_over(self) -> bool:
        return self._has_stopped or self._elapsed >= (self._stress.seconds or math.inf)

    @property
    def _elapsed(self) -> float:
        """Seconds since the first repetition began."""
        return 0.0 if self._began is None else self._clock() - self._began

    def _test(self, index: int) -> _Test:
        return self._tests[self._program.tests[index]]

    def _reserved(self, index: int) -> int:
        return self._test(index).reserved

    def _may_begin(self, index: int) -> bool:
        test = self._test(index)
        return not self._is_over and not test.is_skipped and test.reserved < (self._stress.count or math.inf)

    def _reserve(self, index: int) -> bool:
        with self._lock:
            may_begin = self._may_begin(index)
            self._test(index).reserved += may_begin
            return may_begin

    def _count(self, test: _Test, started: TestStarted, ends: Sequence[RepetitionRecord]) -> None:
        self._runs += 1
        seconds = seconds_of(ends)
        test.durations[_step_of(seconds)] += 1
        test.tally = replace(test.tally, runs=test.tally.runs + 1)
        if seconds >= test.tally.slowest:
            test.tally = replace(test.tally, slowest=round(seconds, 6), slowest_at=started.number)

    def _count_bad(self, test: _Test, started: TestStarted, ends: Sequence[RepetitionRecord], now: float) -> None:
        self._bad += 1
        test.tally = replace(test.tally, bad=test.tally.bad + 1)
        records = ends if self._stress.skew == OFF else [_mark_tight_timeout(end) for end in ends]
        if test.tally.bad == 1:
            test.first_bad = records
            test.tally = replace(test.tally, first_bad=started.number, first_bad_after=round(now, 3))
        kind = _failure_kind(ends)
        count, first = test.failure_kinds.get(kind, (0, started))
        if count or len(test.failure_kinds) < MOST_KEPT:
            test.failure_kinds[kind] = count + 1, first
        if count < MOST_PER_KIND and sum(other.tally.kept for other in self._tests.values()) < MOST_KEPT:
            test.tally = replace(test.tally, kept=test.tally.kept + 1)
            name = name_of_repetition(started.nodeid, started.number, started.seed, self._stress.skew)
            self._journal.write(replace(started, nodeid=name, number=1))
            for record in records:
                self._journal.write(replace(record, nodeid=name))
        most = self._program.maxfail
        self._has_stopped = bool(most) and sum(bool(other.tally.bad) for other in self._tests.values()) >= most


def _summary_records(nodeid: str, test: _Test) -> Sequence[Record]:
    """The records for a test as a whole: with its failure rate if a repetition failed, else those of the last one."""
    ends = [end for end in test.first_bad if not isinstance(end, FailureCourse)]
    if not ends:
        return test.last
    primary = _primary_failure(ends)
    rank, size = 0 if primary is None else primary.rank, ends[0].world_size
    summary = RankEnded(
        nodeid=nodeid,
        rank=rank,
        outcome=Outcome.FAILED,
        world_size=size,
        arrived=max(end.arrived if isinstance(end, RankEnded) else max(end.arrived) for end in ends),
        phases=(PhaseEnd(when="call", outcome=Outcome.FAILED, seconds=test.tally_with_median.median),),
        phase="call",
        message="; ".join(filter(None, (full_rate(test.tally.bad, test.tally.runs), test.tally.shrunk))),
        text=f"{primary.message}\n{primary.text}" if primary else "",
    )
    others = (other for other in range(size) if other != rank)
    return [*(replace(summary, rank=other, consequence=True, caused_by=rank, text="") for other in others), summary]


def _mark_tight_timeout(end: RepetitionRecord) -> RepetitionRecord:
    """Mark a timeout in the test itself, which may be too short for the delays."""
    if not isinstance(end, RankEnded) or end.outcome is not Outcome.FAILED or end.consequence:
        return end
    return replace(end, message=f"tight timeout: {end.message}") if _TIMEOUT.search(end.message) else end


def _primary_failure(ends: Sequence[RepetitionRecord]) -> RankEnded | None:
    """The primary failure if it is known, or else any failure; None if no rank failed."""
    bad = [end for end in ends if isinstance(end, RankEnded) and end.outcome.is_bad]
    return next((end for end in bad if not end.consequence), next(iter(bad), None))


def _failure_kind(ends: Sequence[RepetitionRecord]) -> tuple[Outcome, str]:
    """The kind of failure of a repetition."""
    primary = _primary_failure(ends)
    return (Outcome.MISSING, "") if primary is None else (primary.outcome, re.sub(r"[\d.]+", "", primary.message)[:200])


def _step_of(seconds: float) -> int:
    return round(math.log(max(seconds, 1e-6)) / _STEP)


def _median(durations: Counter[int]) -> float:
    """The median of durations, to 5 %; 0 if there are none."""
    left = (durations.total() + 1) // 2
    for step, count in sorted(durations.items()):
        left -= count
        if left <= 0:
            return math.exp(step * _STEP)
    return 0.0

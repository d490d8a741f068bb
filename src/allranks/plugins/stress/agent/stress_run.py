"""Repetitions of a job's tests: which is next, and a journal that counts those that pass.

A repetition that passes is a count and a duration. One that goes wrong keeps its records, under a name of its own, up
to a few dozen that are alike. So neither memory nor report grow with the number of repetitions.
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
from allranks.agent.supervisor.test_loop import End, assemblies
from allranks.plugins.stress.agent.settings import Stress, seed_of_repetition
from allranks.plugins.stress.agent.skew import outside_in
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

MOST_OF_A_GANG = 1_000
"""Repetitions of a gang: what its ranks leave in memory and in their folder goes with them."""

MOST_ALIKE = 24
"""Bad repetitions of a test that are kept if their messages differ in numbers alone."""

MOST_KEPT = 300
"""Bad repetitions of a job that are kept."""

MOST_NOTES = 50
"""Records of each kind about gangs, processes left behind and the like that are kept."""

_INTERVAL, _SHARE = 1.0, 0.01
"""A tally is reported after so many seconds, and after this share of the time so far: a thousand times in ten hours."""

_STEP = math.log(1.05)
"""Durations are counted in steps of 5 %: a few hundred counters, however many repetitions there are."""

_TIME_OUT = re.compile(r"timed?[ -]?out|failed to pass monitoredbarrier", re.IGNORECASE)


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


@dataclass(kw_only=True)
class _Test:
    """The repetitions of one test so far.

    Attributes:
        promised: Those that have begun, or are about to.
        begun: The number of those that have begun.
        is_settled: It was skipped, and would be again.
        is_lost: One of them has no outcome.
        last: The records of the last one that did not go wrong.
        first_bad: Its records.
        durations: How many took so many steps of 5 %.
        alike: How many went wrong, and how the first of them began, by what they have in common.
    """

    promised: int = 0
    begun: int = 0
    is_settled: bool = False
    is_lost: bool = False
    last: Sequence[End] = ()
    first_bad: Sequence[End] = ()
    tally: RepetitionTally = field(default_factory=RepetitionTally)
    durations: Counter[int] = field(default_factory=Counter)
    alike: dict[tuple[Outcome, str], tuple[int, TestStarted]] = field(default_factory=dict)

    @property
    def told(self) -> RepetitionTally:
        """The tally, with the median of the durations: their steps may be beyond the slowest."""
        return replace(self.tally, median=min(round(_median(self.durations), 6), self.tally.slowest))


class Repetitions:
    """The repetitions of a job's tests; any thread may ask for the next ones.

    Args:
        stress: How often they are repeated.
        program: The tests.
        journal: Where records go.
        clock: Seconds.
    """

    def __init__(
        self, stress: Stress, program: Program, journal: Journal, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stress = stress
        self._program = program
        self._journal = journal
        self._clock = clock
        self._assemblies = list(assemblies(program.terms, range(len(program.tests))))
        how = RepetitionTally(command="stress", how=" ".join(options_of(stress.skew)))
        self._tests = {nodeid: _Test(tally=how) for nodeid in program.tests}
        self._notes: Counter[type[Record]] = Counter()
        self._has_stopped = False
        self._runs = self._bad = 0
        self._began: float | None = None
        self._told_at = 0.0
        self._lock = threading.Lock()

    def next_turn(self) -> Sequence[int] | None:
        """The tests for a gang, the one with the fewest repetitions first; None if there are no more."""
        with self._lock:
            turns = [[index for index in indices if self._may_begin(index)] for indices in self._assemblies]
            found = min(filter(None, turns), key=lambda turn: min(map(self._promised, turn)), default=None)
            if found is None:
                return None
            start = found.index(min(found, key=self._promised))
            self._of(found[start]).promised += 1
            return [*found[start:], *found[:start]]

    def steps(self, indices: Sequence[int]) -> Iterator[tuple[int, int]]:
        """See :class:`Plan`; the first is promised already."""
        seconds = TURN if len(self._assemblies) > 1 else math.inf
        ends, least = self._clock() + seconds, len(indices)
        shares_ranks = self._program.terms[indices[0]].shares_ranks
        pairs = zip(indices, [*indices[1:], indices[0]], strict=True)
        for count, (index, following) in enumerate(itertools.cycle(pairs)):
            if count:
                is_full = not shares_ranks or count >= max(least, MOST_OF_A_GANG)
                if is_full or (count >= least and self._clock() >= ends) or not self._promise(index):
                    return
            yield index, following

    def begin(self, index: int) -> int:
        with self._lock:
            test = self._of(index)
            self._began = self._clock() if self._began is None else self._began
            if not test.begun:
                self._journal.write(TestStarted(nodeid=self._program.tests[index]))
                self._tell(self._program.tests[index])  # before any repetition is reported by its own name
            test.begun += 1
            return test.begun

    def drawn(self, command: RunTest, number: int) -> RunTest:
        replay = self._stress.replay
        seed = seed_of_repetition(command.seed, number) if replay is None else replay
        return replace(command, seed=seed, instructions=self._stress.skew)

    def disturbance(self, command: RunTest, ranks: int, *, is_joining: bool) -> str:
        return outside_in(command.instructions, command.seed, ranks, is_joining=is_joining)

    def take(self, started: TestStarted, ends: Sequence[End]) -> None:
        """Count a repetition by its records, and write them if it went wrong."""
        with self._lock:
            test, now = self._tests[started.nodeid], self._elapsed
            outcomes, bad = outcomes_of(ends), was_bad(started, ends)
            if not outcomes:
                test.is_lost = True
            elif bad is None:
                test.last = test.last or ends  # ended from outside: it counts for nothing, unless there is no other
            else:
                self._count(test, started, ends)
            if bad:
                self._count_bad(test, started, ends, now)
            elif bad is not None:
                test.last, test.is_settled = ends, outcomes == {Outcome.SKIPPED}
            if now - self._told_at >= max(_INTERVAL, _SHARE * now):
                self._told_at = now
                self._tell(started.nodeid)

    def note(self, record: GangStarted | GangReady | LeftBehind | Notice) -> None:
        """Write a record that every repetition may bring, unless there are enough of its kind."""
        with self._lock:
            if isinstance(record, LeftBehind):
                test = self._tests[record.nodeid]
                test.tally = replace(test.tally, left=test.tally.left + 1)
            self._notes[type(record)] += 1
            if self._notes[type(record)] <= MOST_NOTES:
                self._journal.write(record)

    def typical_failures(self) -> Sequence[TestStarted]:
        """For each test that went wrong, the first repetition that went wrong in the most frequent way."""
        kinds = [each.alike.values() for each in self._tests.values() if each.alike]
        return [max(each, key=lambda kind: kind[0])[1] for each in kinds]

    def explain(self, failed: TestStarted, why: str, skew: str, shown: Sequence[End]) -> None:
        """Report what is known of a test's most frequent failure.

        Args:
            failed: The repetition.
            why: That, in words.
            skew: The delays that it needs.
            shown: The ends of a repetition with these alone, which is reported under a name of its own.
        """
        with self._lock:
            test = self._tests[failed.nodeid]
            test.tally = replace(test.tally, shrunk=why)
            name = name_of_repetition(failed.nodeid, failed.number, failed.seed, skew)
            for record in (replace(failed, number=1), *shown) if shown else ():
                told = replace(record, nodeid=name)
                if isinstance(told, RankEnded) and told.outcome.is_bad and not told.consequence:
                    told = replace(told, message=f"{why}: {told.message}")
                self._journal.write(told)

    def ran(self) -> Sequence[str]:
        """The tests that ran, and were not skipped."""
        return [nodeid for nodeid, test in self._tests.items() if test.tally.runs and not test.is_settled]

    def runs_of(self, nodeid: str) -> int:
        """The repetitions of a test that have an outcome."""
        return self._tests[nodeid].tally.runs

    def set_beside(self, nodeid: str, runs: int, bad: int, told: str) -> None:
        """Report how a test has fared under torch's own runner."""
        test = self._tests[nodeid]
        test.tally = replace(test.tally, beside_runs=runs, beside_bad=bad, beside=told)

    def finish(self) -> None:
        """Write what each test has come to over all of its repetitions."""
        with self._lock:
            for nodeid, test in self._tests.items():
                if test.begun:
                    self._tell(nodeid)
                for record in () if test.is_lost else _all_in_all(nodeid, test):
                    self._journal.write(record)
            if self._is_over and (left := tuple(nodeid for nodeid, test in self._tests.items() if not test.begun)):
                why = "-x or --maxfail" if self._has_stopped else "the end of the time for repetitions"
                self._journal.write(NotRun(tests=left, reason=why))

    def _tell(self, nodeid: str) -> None:
        told = self._tests[nodeid].told
        self._journal.write(Repeated(nodeid=nodeid, tally=told, runs=self._runs, bad=self._bad))

    @property
    def _is_over(self) -> bool:
        return self._has_stopped or self._elapsed >= (self._stress.seconds or math.inf)

    @property
    def _elapsed(self) -> float:
        """Seconds since the first repetition began."""
        return 0.0 if self._began is None else self._clock() - self._began

    def _of(self, index: int) -> _Test:
        return self._tests[self._program.tests[index]]

    def _promised(self, index: int) -> int:
        return self._of(index).promised

    def _may_begin(self, index: int) -> bool:
        test = self._of(index)
        return not self._is_over and not test.is_settled and test.promised < (self._stress.count or math.inf)

    def _promise(self, index: int) -> bool:
        with self._lock:
            may_begin = self._may_begin(index)
            self._of(index).promised += may_begin
            return may_begin

    def _count(self, test: _Test, started: TestStarted, ends: Sequence[End]) -> None:
        self._runs += 1
        seconds = seconds_of(ends)
        test.durations[_step_of(seconds)] += 1
        test.tally = replace(test.tally, runs=test.tally.runs + 1)
        if seconds >= test.tally.slowest:
            test.tally = replace(test.tally, slowest=round(seconds, 6), slowest_at=started.number)

    def _count_bad(self, test: _Test, started: TestStarted, ends: Sequence[End], now: float) -> None:
        self._bad += 1
        test.tally = replace(test.tally, bad=test.tally.bad + 1)
        told = ends if self._stress.skew == OFF else [_of_a_tight_time_out(each) for each in ends]
        if test.tally.bad == 1:
            test.first_bad = told
            test.tally = replace(test.tally, first_bad=started.number, first_bad_after=round(now, 3))
        kind = _kind_of(ends)
        count, first = test.alike.get(kind, (0, started))
        if count or len(test.alike) < MOST_KEPT:
            test.alike[kind] = count + 1, first
        if count < MOST_ALIKE and sum(each.tally.kept for each in self._tests.values()) < MOST_KEPT:
            test.tally = replace(test.tally, kept=test.tally.kept + 1)
            name = name_of_repetition(started.nodeid, started.number, started.seed, self._stress.skew)
            self._journal.write(replace(started, nodeid=name, number=1))
            for record in told:
                self._journal.write(replace(record, nodeid=name))
        most = self._program.maxfail
        self._has_stopped = bool(most) and sum(bool(each.tally.bad) for each in self._tests.values()) >= most


def _all_in_all(nodeid: str, test: _Test) -> Sequence[Record]:
    """The records for a test itself: those of its last repetition, unless one went wrong."""
    ends = [each for each in test.first_bad if not isinstance(each, FailureCourse)]
    if not ends:
        return test.last
    lead = _lead(ends)
    leader, size = 0 if lead is None else lead.rank, ends[0].world_size
    told = RankEnded(
        nodeid=nodeid,
        rank=leader,
        outcome=Outcome.FAILED,
        world_size=size,
        arrived=max(each.arrived if isinstance(each, RankEnded) else max(each.arrived) for each in ends),
        phases=(PhaseEnd(when="call", outcome=Outcome.FAILED, seconds=test.told.median),),
        phase="call",
        message="; ".join(filter(None, (full_rate(test.tally.bad, test.tally.runs), test.tally.shrunk))),
        text=f"{lead.message}\n{lead.text}" if lead else "",
    )
    others = (rank for rank in range(size) if rank != leader)
    return [*(replace(told, rank=rank, consequence=True, caused_by=leader, text="") for rank in others), told]


def _of_a_tight_time_out(end: End) -> End:
    """The end of a repetition under delays: a time-out that the test has set itself may be too short for them."""
    if not isinstance(end, RankEnded) or end.outcome is not Outcome.FAILED or end.consequence:
        return end
    return replace(end, message=f"tight time-out: {end.message}") if _TIME_OUT.search(end.message) else end


def _lead(ends: Sequence[End]) -> RankEnded | None:
    """The rank that went wrong first: one that is no consequence, if there is any; None if none went wrong."""
    bad = [each for each in ends if isinstance(each, RankEnded) and each.outcome.is_bad]
    return next((each for each in bad if not each.consequence), next(iter(bad), None))


def _kind_of(ends: Sequence[End]) -> tuple[Outcome, str]:
    """What bad repetitions that are alike have in common."""
    lead = _lead(ends)
    return (Outcome.MISSING, "") if lead is None else (lead.outcome, re.sub(r"[\d.]+", "", lead.message)[:200])


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

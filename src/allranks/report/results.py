"""The data of a report: the results of ranks, stored in columns, and the verdicts on tests.

A job of 64 ranks and 20,000 tests has over a million results, and nearly all of them are just *passed* with a duration
and a time of arrival. One object for each would take a gigabyte; columns and shared names take 16 megabytes.
"""

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from functools import cached_property
from itertools import repeat
from operator import add, ne, sub, truediv
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self, overload

from allranks.errors import ExitCode
from allranks.protocol.grouping import by_key
from allranks.protocol.outcomes import Outcome, SkipKind, compact_numbers, named_ranks
from allranks.protocol.tracebacks import line_in
from allranks.protocol.xml_text import file_of
from allranks.report.status import Status

if TYPE_CHECKING:
    from allranks.report.rank_timeline import RankTimeline

SkipPolicy = Literal["skip", "pass"]
"""Whether an environment skip counts as a skip or as a pass; the reason is kept in both cases."""

XPASS: Final = "xpass"
"""The reason of a verdict if a test with a non-strict xfail mark passed on every rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankResult:
    """The result of one test on one rank."""

    nodeid: str  # pytest's node id; ``classname::name`` for XML without it
    classname: str
    name: str
    rank: int
    outcome: Outcome
    at: float | None = None  # when the outcome arrived, in seconds on the lead agent's clock; None if not stated
    consequence: bool = False  # True for a secondary failure
    caused_by: int | None = None  # for an aborted rank, the rank that failed first
    skip_kind: SkipKind | None = None
    skip_code: int | None = None  # exit code of torch's skip table
    gpus_needed: int | None = None  # the GPUs (or other accelerators) that a hardware skip requires
    phase: str = ""
    message: str = ""
    text: str = ""
    duration: float = 0.0  # seconds
    stdout: str = ""
    stderr: str = ""
    world_size: int | None = None  # the number of ranks of this test, if it differs from the job's
    reruns: tuple["RankResult", ...] = ()  # the tries before this one, oldest first, without output


class VerdictKind(StrEnum):
    """The kind of a verdict, in JUnit's terms."""

    PASSED = "passed"
    SKIPPED = "skipped"
    FAILURE = "failure"
    ERROR = "error"

    @property
    def is_bad(self) -> bool:
        """True if the run fails because of it."""
        return self in {VerdictKind.FAILURE, VerdictKind.ERROR}

    @property
    def status(self) -> Status:
        return _STATUSES[self]


_STATUSES: Final = {
    VerdictKind.PASSED: Status.PASSED,
    VerdictKind.SKIPPED: Status.SKIPPED,
    VerdictKind.FAILURE: Status.FAILED,
    VerdictKind.ERROR: Status.ERROR,
}


def kind_of(outcome: Outcome) -> VerdictKind:
    """The kind of the verdict on a test whose only or deciding rank has this outcome."""
    if outcome.is_bad:
        return VerdictKind.FAILURE if outcome is Outcome.FAILED else VerdictKind.ERROR
    return VerdictKind.SKIPPED if outcome in {Outcome.SKIPPED, Outcome.XFAILED} else VerdictKind.PASSED


class VerdictRule(IntEnum):
    """The first six rules of :mod:`allranks.report.judge.rules`, by number."""

    UNACCOUNTED = 1
    PRIMARY_FAILURE = 2
    RANKS_DISAGREE = 3
    SKIPPED = 4
    PASSED = 5
    JOB = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The verdict on one test in one cell, over all of its ranks."""

    kind: VerdictKind
    rule: VerdictRule
    reason: str = ""  # one or two words for the ``type`` attribute: ``failed``, ``timed_out``, ``pytest.skip``
    exit_code: ExitCode = ExitCode.OK  # the exit code that this verdict demands of the run
    leading: int | None = None  # the rank with the primary failure
    message: str = ""
    text: str = ""
    executed: bool = True  # True if any rank ran the test
    skip_kind: SkipKind | None = None
    skip_code: int | None = None

    @property
    def is_bad(self) -> bool:
        return self.kind.is_bad

    @property
    def is_skip_but_pass(self) -> bool:
        """True if this is an environment skip that the policy counts as a pass."""
        return self.kind is VerdictKind.PASSED and self.rule is VerdictRule.SKIPPED

    @property
    def is_not_run(self) -> bool:
        """True for a test that was collected, and skipped because its job ended first."""
        return self.kind is VerdictKind.SKIPPED and self.rule is VerdictRule.JOB

    @property
    def status(self) -> Status:
        """The status of the counted attempt alone: never flaky, and a test that did not run is a skip."""
        return Status.PASSED_SKIP if self.is_skip_but_pass else self.kind.status


def status_of(verdict: Verdict, *, has_earlier: bool) -> Status:
    """The status of a test over all attempts; ``has_earlier`` if it failed in an earlier one."""
    if verdict.is_bad:
        return verdict.status
    if verdict.rule is VerdictRule.JOB and not verdict.executed:
        return Status.ABSENT
    return Status.FLAKY if has_earlier else verdict.status


@dataclass(frozen=True, kw_only=True, slots=True)
class TestVerdict:
    """One testcase of the report: a test in a cell, or an error of its job that belongs to no test."""

    __test__ = False  # not a test class, despite its name

    nodeid: str
    classname: str
    name: str
    verdict: Verdict
    ranks: Sequence[RankResult] = ()  # the results behind the verdict, by rank, including missing ones
    earlier: tuple["TestVerdict", ...] = ()  # the test in the earlier attempts in which it failed, oldest first
    number: int = 0  # of an earlier attempt or try: its number, from 1
    file: str = ""  # the source file that the ranks' XML states, if any
    line: int = 0  # the line in that file, if any

    @property
    def source(self) -> tuple[str, int | None]:
        """The source file, and the line in which the test failed or at which it starts, as far as they are known."""
        file = self.file or file_of(self.nodeid)
        line = line_in(self.primary.text, file) if self.verdict.is_bad and self.primary else None
        return file, line or self.line or None

    @property
    def primary(self) -> RankResult | None:
        """The result of the rank with the primary failure."""
        return next((rank for rank in self.ranks if rank.rank == self.verdict.leading), None)

    @property
    def is_flaky(self) -> bool:
        """True if the test failed in an earlier attempt, but not in the one that counts."""
        return bool(self.earlier) and self.status is Status.FLAKY

    @property
    def status(self) -> Status:
        return status_of(self.verdict, has_earlier=bool(self.earlier))

    @property
    def time(self) -> float:
        """Seconds of the slowest rank."""
        if isinstance(self.ranks, PassedRanks):
            return self.ranks.time
        return max((rank.duration for rank in self.ranks), default=0.0)


_CAUSED_BY_OTHERS: Final = frozenset({Outcome.ABORTED, Outcome.MISSING})


def own_failures(ranks: Iterable[RankResult]) -> frozenset[int]:
    """The ranks that failed on their own, or else the missing ranks."""
    bad = [rank for rank in ranks if rank.outcome.is_bad]
    own = [rank for rank in bad if rank.outcome not in _CAUSED_BY_OTHERS and not rank.consequence]
    return frozenset(rank.rank for rank in own or [rank for rank in bad if rank.outcome is Outcome.MISSING])


NO_ARRIVAL: Final = -math.inf
"""The placeholder for an unknown time of arrival."""

_MICROS: Final = 1e6
_MOST_MICROS: Final = (1 << 32) - 1
_UNKNOWN: Final = 0.0  # replaces a first rank's time of arrival until it is known


@dataclass(slots=True)
class Durations:
    """A column of seconds: four bytes each if all are whole microseconds, which is nearly always so."""

    _column: "array[Any]" = field(default_factory=lambda: array("I"))

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Self:
        column = cls()
        column.extend(seconds)
        return column

    def extend(self, seconds: Sequence[float]) -> None:
        micros = [round(value * _MICROS) for value in seconds]
        if self._column.typecode == "I" and (
            max(micros, default=0) > _MOST_MICROS or any(map(ne, map(truediv, micros, repeat(_MICROS)), seconds))
        ):
            self._column = array("d", self)
        self._column.extend(array("I", micros) if self._column.typecode == "I" else array("d", seconds))

    def resize(self, count: int) -> None:
        """Cut or extend the column to this many tests."""
        self._column.extend(repeat(0, count - len(self._column)))
        del self._column[count:]

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, index: int) -> float:
        value: float = self._column[index]
        return value / _MICROS if self._column.typecode == "I" else value

    def __setitem__(self, index: int, seconds: float) -> None:
        if self._column.typecode == "I":
            micros = round(seconds * _MICROS)
            if micros <= _MOST_MICROS and micros / _MICROS == seconds:
                self._column[index] = micros
                return
            self._column = array("d", self)
        self._column[index] = seconds

    def __iter__(self) -> Iterator[float]:
        return map(truediv, self._column, repeat(_MICROS)) if self._column.typecode == "I" else iter(self._column)


@dataclass(slots=True)
class Arrivals:
    """When the outcomes of tests arrived from one rank; :data:`NO_ARRIVAL` if unknown.

    Four bytes each, for the difference from the job's first rank: exact to the microsecond up to four seconds, and to
    seven digits beyond. The times of failures, which are compared to the microsecond, are in :attr:`RankFile.details`.
    """

    first: "array[float]"  # the first rank's time by the index of the test; all ranks of a job share it
    _later: "array[float]" = field(default_factory=lambda: array("f"))

    def resize(self, count: int) -> None:
        """Cut or extend the column to this many tests; the times of additional ones are unknown."""
        self.first.extend(repeat(_UNKNOWN, count - len(self.first)))
        self._later.extend(repeat(NO_ARRIVAL, count - len(self._later)))
        del self._later[count:]

    def extend(self, arrivals: Sequence[float]) -> None:
        start = len(self._later)
        end = start + len(arrivals)
        self.first.extend(repeat(_UNKNOWN, end - len(self.first)))
        if _UNKNOWN in (first := self.first[start:end]):
            first = array(
                "d", (one if at == NO_ARRIVAL else one or at for one, at in zip(first, arrivals, strict=True))
            )
            self.first[start:end] = first
        self._later.extend(map(sub, arrivals, first))

    def __len__(self) -> int:
        return len(self._later)

    def __getitem__(self, index: int) -> float:
        return self.first[index] + self._later[index]

    def __setitem__(self, index: int, at: float) -> None:
        if self.first[index] == _UNKNOWN and at != NO_ARRIVAL:
            self.first[index] = at
        self._later[index] = at - self.first[index]

    def __iter__(self) -> Iterator[float]:
        return map(add, self.first, self._later)


class Key(NamedTuple):
    """How a file of results identifies a test."""

    classname: str
    name: str
    stated_nodeid: str = ""  # the node id in the file, if any
    file: str = ""  # the source file of the test, if stated
    line: int = 0  # the line in that file, if stated

    @property
    def nodeid(self) -> str:
        """The stated node id, or else ``classname::name``."""
        return self.stated_nodeid or (f"{self.classname}::{self.name}" if self.classname else self.name)


@dataclass(frozen=True, kw_only=True)
class RankFile:
    """The results of one rank, as far as its file could be read."""

    path: Path
    rank: int | None  # None if neither the file nor its name states it
    properties: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[Key, ...] = ()  # the distinct tests, in order; ranks that ran the same tests share one tuple
    # The columns have a value for each key; at and world_sizes may also be empty, if all of their values are unknown.
    seconds: Durations = field(default_factory=Durations)
    at: Arrivals = field(default_factory=lambda: Arrivals(array("d")))
    world_sizes: "array[int]" = field(default_factory=lambda: array("H"))  # 0 if unknown
    # By the index of the key, each result that is not just *passed* with the values in these columns.
    details: Mapping[int, RankResult] = field(default_factory=dict)
    problem: str = ""  # one sentence on why the file could not be read to the end, or is implausible
    note: str = ""  # a sentence, without its full stop, on an oddity that may be harmless
    is_unfinished: bool = False  # True if its journal does not record that the job finished
    # From the journal, the same for all ranks: timelines of failed tests and tags of tests, by node id.
    timelines: Mapping[str, "RankTimeline"] = field(default_factory=dict)
    tags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    torch: str = ""  # the version in the journal; empty if unknown

    @property
    def results(self) -> tuple[RankResult, ...]:
        return tuple(map(self.result, range(len(self.keys))))

    def result(self, index: int) -> RankResult:
        """The result of the test whose key has this index."""
        if index in self.details:
            return self.details[index]
        key = self.keys[index]
        at = self.at[index] if self.at else NO_ARRIVAL
        return RankResult(
            nodeid=key.nodeid,
            classname=key.classname,
            name=key.name,
            rank=self.rank or 0,
            outcome=Outcome.PASSED,
            at=None if at == NO_ARRIVAL else at,
            duration=self.seconds[index],
            world_size=(self.world_sizes[index] or None) if self.world_sizes else None,
        )


@dataclass(frozen=True, eq=False)
class RankGroup:
    """The files of ranks that ran the same tests, by rank."""

    files: tuple[RankFile, ...]

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The ranks, in ascending order; a rank that two files claim occurs twice."""
        return tuple(file.rank or 0 for file in self.files)

    @cached_property
    def passed(self) -> str:
        """The :func:`compact` form of a test that passed on all of them."""
        return f"{compact_numbers(self.ranks)}:{Outcome.PASSED.value}"

    @cached_property
    def slowest(self) -> "array[float]":
        """Seconds of the slowest rank of each test."""
        return array("d", map(max, zip(*(file.seconds for file in self.files), strict=True)))

    @cached_property
    def fastest(self) -> "array[float]":
        """Seconds of the fastest rank of each test."""
        return array("d", map(min, zip(*(file.seconds for file in self.files), strict=True)))

    @property
    def keys(self) -> tuple[Key, ...]:
        return self.files[0].keys

    @cached_property
    def index(self) -> Mapping[str, int]:
        """The index of each test's key, by node id."""
        return {key.nodeid: index for index, key in enumerate(self.keys)}

    @cached_property
    def notable(self) -> frozenset[int]:
        """The indices of tests that are not a plain pass on every rank."""
        return frozenset(index for file in self.files for index in file.details)

    @cached_property
    def world_sizes(self) -> "array[int]":
        """The largest world size that any rank reports for each test; 0 if none does."""
        nothing = array("H", [0]) * len(self.keys)
        return array("H", map(max, zip(nothing, *(file.world_sizes or nothing for file in self.files), strict=True)))


@dataclass(frozen=True, slots=True, eq=False)
class PassedRanks(Sequence[RankResult]):
    """The results of a test that passed on every rank, each built on access."""

    group: RankGroup
    test_index: int

    def __len__(self) -> int:
        return len(self.group.files)

    @overload
    def __getitem__(self, index: int) -> RankResult: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RankResult, ...]: ...
    def __getitem__(self, index: int | slice) -> RankResult | tuple[RankResult, ...]:
        if isinstance(index, slice):
            return tuple(file.result(self.test_index) for file in self.group.files[index])
        return self.group.files[index].result(self.test_index)

    def __iter__(self) -> Iterator[RankResult]:
        return (file.result(self.test_index) for file in self.group.files)

    @property
    def time(self) -> float:
        """Seconds of the slowest rank."""
        return self.group.slowest[self.test_index]


def rank_groups(files: Iterable[RankFile]) -> tuple[RankGroup, ...]:
    """Group the files by equal lists of tests; the ranks of a normal job form one group."""
    groups: dict[int, list[RankFile]] = {}
    known: list[tuple[Key, ...]] = []
    for file in files:
        same = next((index for index, keys in enumerate(known) if keys is file.keys or keys == file.keys), None)
        if same is None:
            same = len(known)
            known.append(file.keys)
        groups.setdefault(same, []).append(file)
    return tuple(RankGroup(tuple(sorted(group, key=lambda file: file.rank or 0))) for group in groups.values())


def results_of(nodeid: str, groups: Iterable[RankGroup]) -> list[RankResult]:
    """The results of one test, one for each rank that reports it: the worst if several files do."""
    by_rank = by_key(
        (file.rank or 0, file.result(index))
        for group in groups
        if (index := group.index.get(nodeid)) is not None
        for file in group.files
    )
    return [fold(same) for same in by_rank.values()]


SEVERITY: Final = (
    Outcome.PASSED,
    Outcome.XPASSED,
    Outcome.XFAILED,
    Outcome.SKIPPED,
    Outcome.ABORTED,
    Outcome.FAILED,
    Outcome.ERRORED,
    Outcome.TIMED_OUT,
    Outcome.CRASHED,
    Outcome.MISSING,
)
"""The outcomes from the best to the worst.

If the order of arrival is unknown, this order decides: the further a rank was from completing its test on its own, the
worse. A crash is worse than a timeout because peers hang on a crashed rank; an aborted rank was fine until it was
stopped.
"""

_SEVERITY_OF: Final = {outcome: index for index, outcome in enumerate(SEVERITY)}


def severity(outcome: Outcome) -> int:
    """The index of an outcome in :data:`SEVERITY`: the higher, the worse."""
    return _SEVERITY_OF[outcome]


def fold(results: Sequence[RankResult]) -> RankResult:
    """One result for several of the same rank and test: the worst, followed by the messages and texts of the others.

    The order of ``results`` makes no difference.
    """
    if len(results) == 1:
        return results[0]
    first, *others = sorted(results, key=_worst_first)
    texts = dict.fromkeys(text for text in (first.text, *(f"{o.message}\n{o.text}".strip() for o in others)) if text)
    return replace(
        first,
        text="\n\n".join(texts),
        duration=max(result.duration for result in results),
        stdout="".join(dict.fromkeys(result.stdout for result in [first, *others])),
        stderr="".join(dict.fromkeys(result.stderr for result in [first, *others])),
    )


def _worst_first(result: RankResult) -> tuple[object, ...]:
    """A total order, so that folding does not depend on the order in the file."""
    earliest = (result.at is None, result.at or 0.0)
    texts = (result.message, result.text, result.stdout, result.stderr, result.classname, result.name)
    skip = (str(result.skip_kind), str(result.skip_code), str(result.gpus_needed))
    more = (result.consequence, str(result.caused_by), *skip, result.duration, result.phase, str(result.world_size))
    return (-severity(result.outcome), *earliest, *texts, *more)


def compact(ranks: Sequence[RankResult]) -> str:
    """``0-2,5:passed 3-4:failed``: every rank with its outcome, for programs."""
    if isinstance(ranks, PassedRanks):
        return ranks.group.passed
    by_outcome = by_key((rank.outcome, rank.rank) for rank in ranks)
    return " ".join(f"{compact_numbers(group)}:{outcome.value}" for outcome, group in by_outcome.items())


def describe(outcome: Outcome) -> str:
    """An outcome in one or two words."""
    return outcome.value.replace("_", " ")


def rank_summary(ranks: Sequence[RankResult], primary: RankResult | None = None) -> str:
    """Every rank with its outcome: ``ranks 0, 2-3 aborted by rank 1; rank 1 failed (primary failure)``."""
    by_outcome = by_key((_with_role(rank, primary), rank.rank) for rank in ranks)
    return "; ".join(f"{named_ranks(group)} {outcome}" for outcome, group in by_outcome.items())


def _with_role(rank: RankResult, primary: RankResult | None) -> str:
    outcome = describe(rank.outcome)
    if rank is primary:
        return f"{outcome} (primary failure)"
    if rank.outcome is Outcome.ABORTED and rank.caused_by is not None:
        return f"{outcome} by rank {rank.caused_by}"
    return f"{outcome} (secondary failure)" if rank.consequence and rank.outcome.is_bad else outcome

"""The values of the report: results of ranks, in columns, and the tests they add up to.

A job of 64 ranks and 20,000 tests has over a million results, nearly all of them only *passed*, a duration and a time
of arrival. An object for each would take a gigabyte; columns, and names that the ranks share, take 16 megabytes.
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
from allranks.protocol.outcomes import Outcome, SkipKind, numbers
from allranks.protocol.tracebacks import line_in
from allranks.protocol.xml_text import file_of
from allranks.report.status import Status

if TYPE_CHECKING:
    from allranks.report.rank_course import RankCourse

SkipPolicy = Literal["skip", "pass"]
"""How an environment skip is read: as the skip it is, or as a pass that keeps its reason."""

XPASS: Final = "xpass"
"""The reason of a pass on every rank of a test with a non-strict xfail mark."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankResult:
    """The result of one test on one rank."""

    nodeid: str  # pytest's node id; ``classname::name`` for XML without it
    classname: str
    name: str
    rank: int
    outcome: Outcome
    # Seconds on the clock of the leading agent when the outcome arrived there: for order only. None if the XML does not
    # state it.
    at: float | None = None
    consequence: bool = False  # True if this bad outcome came within the grace after the leading one
    caused_by: int | None = None  # for an aborted rank, the rank that failed first
    skip_kind: SkipKind | None = None
    skip_code: int | None = None  # exit code of torch's skip table
    gpus_needed: int | None = None  # the GPUs (or other accelerators) that a hardware skip asked for
    phase: str = ""
    message: str = ""
    text: str = ""
    duration: float = 0.0  # seconds
    stdout: str = ""
    stderr: str = ""
    world_size: int | None = None  # ranks that took part in this test, if it differs from the job's
    reruns: tuple["RankResult", ...] = ()  # the tries before the one with this outcome, oldest first, without output


class VerdictKind(StrEnum):
    """The kind of verdict on a test in a cell, in JUnit's terms."""

    PASSED = "passed"
    SKIPPED = "skipped"
    FAILURE = "failure"
    ERROR = "error"

    @property
    def is_bad(self) -> bool:
        """True if this makes the run bad."""
        return self in {VerdictKind.FAILURE, VerdictKind.ERROR}

    @property
    def status(self) -> Status:
        """Its letter."""
        return _STATUSES[self]


_STATUSES: Final = {
    VerdictKind.PASSED: Status.PASSED,
    VerdictKind.SKIPPED: Status.SKIPPED,
    VerdictKind.FAILURE: Status.FAILED,
    VerdictKind.ERROR: Status.ERROR,
}


def kind_of(outcome: Outcome) -> VerdictKind:
    """The kind of verdict on a test whose only rank, or leading rank, has this outcome."""
    if outcome.is_bad:
        return VerdictKind.FAILURE if outcome is Outcome.FAILED else VerdictKind.ERROR
    return VerdictKind.SKIPPED if outcome in {Outcome.SKIPPED, Outcome.XFAILED} else VerdictKind.PASSED


class VerdictRule(IntEnum):
    """The first six rules of :mod:`allranks.report.judge.rules`, by number."""

    UNACCOUNTED = 1
    LEADING_OUTCOME = 2
    RANKS_DISAGREE = 3
    SKIPPED = 4
    PASSED = 5
    JOB = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The verdict on the rank outcomes of one test in one cell."""

    kind: VerdictKind
    rule: VerdictRule
    reason: str = ""  # one or two words for the ``type`` attribute: ``failed``, ``timed_out``, ``pytest.skip``
    exit_code: ExitCode = ExitCode.OK  # the run's exit code if there were only this verdict
    leading: int | None = None
    message: str = ""
    text: str = ""
    executed: bool = True  # True if any rank ran the test
    skip_kind: SkipKind | None = None
    skip_code: int | None = None

    @property
    def is_bad(self) -> bool:
        """True if this verdict makes the run bad."""
        return self.kind.is_bad

    @property
    def is_skip_but_pass(self) -> bool:
        """True if this is an environment skip that the policy reads as a pass."""
        return self.kind is VerdictKind.PASSED and self.rule is VerdictRule.SKIPPED

    @property
    def status(self) -> Status:
        """How it counts: a test that was not run is a skip, and a flaky one is what it was in its last attempt."""
        return Status.PASSED_SKIP if self.is_skip_but_pass else self.kind.status


def status_of(verdict: Verdict, *, has_earlier: bool) -> Status:
    """What has become of a test with this verdict, which may have gone wrong in an earlier attempt."""
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
    ranks: Sequence[RankResult] = ()  # the rank results behind the verdict, by rank, including missing ones
    earlier: tuple["TestVerdict", ...] = ()  # the same test in the attempts before in which it went wrong, oldest first
    number: int = 0  # of one of these: that of its attempt, or of its try within one, from 1
    file: str = ""  # the source file that its ranks' XML states; empty if they state none
    line: int = 0  # the line in that; 0 if they state none

    @property
    def source(self) -> tuple[str, int | None]:
        """The source file and the line that it went wrong in, as far as these are known; the line of a good test."""
        file = self.file or file_of(self.nodeid)
        line = line_in(self.lead.text, file) if self.verdict.is_bad and self.lead else None
        return file, line or self.line or None

    @property
    def lead(self) -> RankResult | None:
        """The result of the rank that the verdict leads with."""
        return next((rank for rank in self.ranks if rank.rank == self.verdict.leading), None)

    @property
    def is_flaky(self) -> bool:
        """True if the test went wrong in an earlier attempt, but not in the one that counts."""
        return bool(self.earlier) and self.status is Status.FLAKY

    @property
    def status(self) -> Status:
        """What has become of it over all attempts."""
        return status_of(self.verdict, has_earlier=bool(self.earlier))

    @property
    def time(self) -> float:
        """Seconds of the slowest rank."""
        if isinstance(self.ranks, PassedRanks):
            return self.ranks.time
        return max((rank.duration for rank in self.ranks), default=0.0)


_OF_OTHERS: Final = frozenset({Outcome.ABORTED, Outcome.MISSING})


def own_failures(ranks: Iterable[RankResult]) -> frozenset[int]:
    """The ranks that went wrong by themselves; those without a result if no other rank did."""
    bad = [rank for rank in ranks if rank.outcome.is_bad]
    own = [rank for rank in bad if rank.outcome not in _OF_OTHERS and not rank.consequence]
    return frozenset(rank.rank for rank in own or [rank for rank in bad if rank.outcome is Outcome.MISSING])


ABSENT: Final = -math.inf
"""The placeholder for an unknown time of arrival."""

_MICROS: Final = 1e6
_MOST_MICROS: Final = (1 << 32) - 1
_NOBODY: Final = 0.0  # in the place of the first rank's time, until one is known


@dataclass(slots=True)
class Durations:
    """A column of seconds: four bytes each as long as all are whole microseconds, as nearly all are."""

    _column: "array[Any]" = field(default_factory=lambda: array("I"))

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Self:
        """A column with these values."""
        column = cls()
        column.extend(seconds)
        return column

    def extend(self, seconds: Sequence[float]) -> None:
        """Add values at the end; none of them changes."""
        micros = [round(each * _MICROS) for each in seconds]
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
        """The number of values."""
        return len(self._column)

    def __getitem__(self, place: int) -> float:
        """One value."""
        value: float = self._column[place]
        return value / _MICROS if self._column.typecode == "I" else value

    def __setitem__(self, place: int, seconds: float) -> None:
        """Change a value."""
        if self._column.typecode == "I":
            micros = round(seconds * _MICROS)
            if micros <= _MOST_MICROS and micros / _MICROS == seconds:
                self._column[place] = micros
                return
            self._column = array("d", self)
        self._column[place] = seconds

    def __iter__(self) -> Iterator[float]:
        """Each value."""
        return map(truediv, self._column, repeat(_MICROS)) if self._column.typecode == "I" else iter(self._column)


@dataclass(slots=True)
class Arrivals:
    """When the outcomes of tests arrived on one rank; :data:`ABSENT` if unknown.

    Four bytes each, for the difference from the first rank of the job: exact up to four seconds, beyond that to seven
    digits. Where outcomes are compared to the microsecond, because they are bad, :attr:`RankFile.details` has them.
    """

    first: "array[float]"  # of any rank, by the index of the test; all ranks of a job share it
    _later: "array[float]" = field(default_factory=lambda: array("f"))

    def resize(self, count: int) -> None:
        """Cut or extend the column to this many tests; nothing is known of further ones."""
        self.first.extend(repeat(_NOBODY, count - len(self.first)))
        self._later.extend(repeat(ABSENT, count - len(self._later)))
        del self._later[count:]

    def extend(self, arrivals: Sequence[float]) -> None:
        """Add values at the end."""
        start = len(self._later)
        end = start + len(arrivals)
        self.first.extend(repeat(_NOBODY, end - len(self.first)))
        if _NOBODY in (first := self.first[start:end]):
            first = array("d", (one or at if at != ABSENT else one for one, at in zip(first, arrivals, strict=True)))
            self.first[start:end] = first
        self._later.extend(map(sub, arrivals, first))

    def __len__(self) -> int:
        """The number of values."""
        return len(self._later)

    def __getitem__(self, place: int) -> float:
        """One value."""
        return self.first[place] + self._later[place]

    def __setitem__(self, place: int, at: float) -> None:
        """Change a value."""
        if self.first[place] == _NOBODY and at != ABSENT:
            self.first[place] = at
        self._later[place] = at - self.first[place]

    def __iter__(self) -> Iterator[float]:
        """Each value."""
        return map(add, self.first, self._later)


class Key(NamedTuple):
    """A test's name in a file."""

    classname: str
    name: str
    said: str = ""  # the node id that the file states; empty if it states none
    file: str = ""  # the source file that it states; empty if it states none
    line: int = 0  # the line in that; 0 if it states none

    @property
    def nodeid(self) -> str:
        """The node id; ``classname::name`` if the file states none."""
        return self.said or (f"{self.classname}::{self.name}" if self.classname else self.name)


@dataclass(frozen=True, kw_only=True)
class RankFile:
    """The results of one rank, as far as its file could be read."""

    path: Path
    rank: int | None  # None if neither the file nor its name states it
    properties: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[Key, ...] = ()  # its tests, each once, in order. Ranks that ran the same tests share one tuple.
    seconds: Durations = field(default_factory=Durations)
    # When the outcome of each test arrived. Empty if all that is unknown.
    at: Arrivals = field(default_factory=lambda: Arrivals(array("d")))
    # The number of ranks that took part in each; 0 if unknown. Empty if all are.
    world_sizes: "array[int]" = field(default_factory=lambda: array("H"))
    # The results with more than *passed* and these three.
    details: Mapping[int, RankResult] = field(default_factory=dict)
    problem: str = ""  # why the file could not be read to its end, or is implausible, in one sentence; empty for none
    note: str = ""  # an oddity that may be harmless; empty for none
    is_unfinished: bool = False  # True if its journal does not record that the job did all its work
    # Of its journal's tests that went wrong, by node id; as its tags, the same for all ranks.
    courses: Mapping[str, "RankCourse"] = field(default_factory=dict)
    tags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    torch: str = ""  # the version that its journal names, the same for all ranks; empty if unknown

    @property
    def results(self) -> tuple[RankResult, ...]:
        """All of them."""
        return tuple(map(self.result, range(len(self.keys))))

    def result(self, place: int) -> RankResult:
        """The result of the test whose key has this index."""
        if place in self.details:
            return self.details[place]
        key = self.keys[place]
        at = self.at[place] if self.at else ABSENT
        return RankResult(
            nodeid=key.nodeid,
            classname=key.classname,
            name=key.name,
            rank=self.rank or 0,
            outcome=Outcome.PASSED,
            at=None if at == ABSENT else at,
            duration=self.seconds[place],
            world_size=(self.world_sizes[place] or None) if self.world_sizes else None,
        )


@dataclass(frozen=True, eq=False)
class RankGroup:
    """The files of ranks that ran the same tests, in the order of the ranks."""

    files: tuple[RankFile, ...]

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The ranks, in ascending order; a rank that two files claim occurs twice."""
        return tuple(file.rank or 0 for file in self.files)

    @cached_property
    def passed(self) -> str:
        """The result of :func:`compact` for a test that passed on all of them."""
        return _compact(self.ranks, Outcome.PASSED)

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
        """Their tests, in order."""
        return self.files[0].keys

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The index of each test, by node id."""
        return {key.nodeid: place for place, key in enumerate(self.keys)}

    @cached_property
    def notable(self) -> frozenset[int]:
        """The indices of tests that are not a plain pass on every rank."""
        return frozenset(place for file in self.files for place in file.details)

    @cached_property
    def world_sizes(self) -> "array[int]":
        """The largest world size that any rank reports for each test; 0 if none does."""
        nothing = array("H", [0]) * len(self.keys)
        return array("H", map(max, zip(nothing, *(file.world_sizes or nothing for file in self.files), strict=True)))


@dataclass(frozen=True, slots=True, eq=False)
class PassedRanks(Sequence[RankResult]):
    """The results of a test that passed on every rank, each built on access."""

    team: RankGroup
    place: int

    def __len__(self) -> int:
        """The number of ranks."""
        return len(self.team.files)

    @overload
    def __getitem__(self, index: int) -> RankResult: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RankResult, ...]: ...
    def __getitem__(self, index: int | slice) -> RankResult | tuple[RankResult, ...]:
        """The result of one rank, or of a slice of ranks."""
        if isinstance(index, slice):
            return tuple(file.result(self.place) for file in self.team.files[index])
        return self.team.files[index].result(self.place)

    def __iter__(self) -> Iterator[RankResult]:
        """Each rank's result."""
        return (file.result(self.place) for file in self.team.files)

    @property
    def time(self) -> float:
        """Seconds of the slowest rank."""
        return self.team.slowest[self.place]


def teams_of(files: Iterable[RankFile]) -> tuple[RankGroup, ...]:
    """The files, grouped by equal lists of tests; the ranks of a job that went well form one group."""
    groups: dict[int, list[RankFile]] = {}
    known: list[tuple[Key, ...]] = []
    for file in files:
        same = next((place for place, keys in enumerate(known) if keys is file.keys or keys == file.keys), None)
        if same is None:
            same = len(known)
            known.append(file.keys)
        groups.setdefault(same, []).append(file)
    return tuple(RankGroup(tuple(sorted(group, key=lambda file: file.rank or 0))) for group in groups.values())


def results_of(nodeid: str, teams: Iterable[RankGroup]) -> list[RankResult]:
    """The results of one test, one for each rank that reports it: if several files do for a rank, the worse."""
    by_rank: dict[int, list[RankResult]] = {}
    for team in teams:
        if (place := team.places.get(nodeid)) is not None:
            for file in team.files:
                by_rank.setdefault(file.rank or 0, []).append(file.result(place))
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

This order decides if the order of arrival is unknown: the further a rank was from ending its test by itself, the
worse. A crash is worse than a time-out because peers hang on a crashed rank; an aborted rank was fine until it was
stopped.
"""

_SEVERITY_OF: Final = {outcome: place for place, outcome in enumerate(SEVERITY)}


def severity(outcome: Outcome) -> int:
    """The index of an outcome in :data:`SEVERITY`; the higher, the worse."""
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
    """The key of a total order, so that folding does not depend on the order in the file."""
    earliest = (result.at is None, result.at or 0.0)
    said = (result.message, result.text, result.stdout, result.stderr, result.classname, result.name)
    skip = (str(result.skip_kind), str(result.skip_code), str(result.gpus_needed))
    more = (result.consequence, str(result.caused_by), *skip, result.duration, result.phase, str(result.world_size))
    return (-severity(result.outcome), *earliest, *said, *more)


def compact(ranks: Sequence[RankResult]) -> str:
    """``0-2,5:passed 3-4:failed``: every rank with its outcome, for programs."""
    if isinstance(ranks, PassedRanks):
        return ranks.team.passed
    by_outcome: dict[Outcome, list[int]] = {}
    for rank in ranks:
        by_outcome.setdefault(rank.outcome, []).append(rank.rank)
    return " ".join(_compact(group, outcome) for outcome, group in by_outcome.items())


def _compact(group: Iterable[int], outcome: Outcome) -> str:
    return f"{numbers(group)}:{outcome.value}".replace(" ", "")


def describe(outcome: Outcome) -> str:
    """An outcome as a word or two of prose."""
    return outcome.value.replace("_", " ")


def strip(ranks: Sequence[RankResult], leading: RankResult | None = None) -> str:
    """``0, 2-3 aborted by rank 1; 1 failed (leads)``: every rank with its outcome, grouped by outcome."""
    by_outcome: dict[str, list[int]] = {}
    for rank in ranks:
        by_outcome.setdefault(_with_role(rank, leading), []).append(rank.rank)
    return "; ".join(f"{numbers(group)} {words}" for words, group in by_outcome.items())


def _with_role(rank: RankResult, leading: RankResult | None) -> str:
    words = describe(rank.outcome)
    if rank is leading:
        return f"{words} (leads)"
    if rank.outcome is Outcome.ABORTED and rank.caused_by is not None:
        return f"{words} by rank {rank.caused_by}"
    return f"{words} (consequence)" if rank.consequence and rank.outcome.is_bad else words
